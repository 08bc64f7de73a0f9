"""A taskset of verifiers without end, whose tasks have a tool: words from a vault, to be said backwards."""

import itertools

import verifiers.v1 as vf

__all__ = ["Vaults"]
WORDS = ("pear", "plum", "date", "kiwi")


class VaultData(vf.TaskData):
    shelf: int


class VaultTools(vf.Toolset[vf.SharedToolsetConfig, vf.State]):
    TOOL_PREFIX = "vault"

    @vf.tool
    async def open_shelf(self, number: int) -> str:
        """The word on a shelf."""
        return WORDS[number % len(WORDS)]


class VaultTask(vf.Task[VaultData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace) -> float:
        word = WORDS[self.data.shelf % len(WORDS)]
        return float(trace.last_reply.strip() == word[::-1])


class Vaults(vf.Taskset[VaultTask, vf.TasksetConfig]):
    INFINITE = True

    @classmethod
    def toolsets(cls, config):
        return [VaultTools(vf.SharedToolsetConfig())]

    def load(self):
        for shelf in itertools.count():
            prompt = f"Say the word on shelf {shelf} backwards."
            yield VaultTask(VaultData(prompt=prompt, shelf=shelf, system_prompt="Use the vault."))


if __name__ == "__main__":
    VaultTools.run()
