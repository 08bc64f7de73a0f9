"""The clients that are tried: what each is installed from, its task, and what it is known to rewrite."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from policies import Policy, calls_tools, fills_fields, fills_in, writes_code


@dataclass(frozen=True)
class Client:
    name: str
    task: str
    endpoints: Sequence[str]
    requirements: Sequence[str]
    shown: str
    """The package whose version the table names; for npm, perhaps several."""
    kind: str = ""
    """Agent of the package, if it has several."""
    is_npm: bool = False
    provider: str = ""
    """Package of Vercel's SDK that makes the model."""
    policy: Callable[[str], tuple[Policy, int]] = calls_tools
    """Function from a template's shape to the model's words, and the number of calls that they
    make."""
    changes: Mapping[str, str] = field(default_factory=dict)
    """Texts that the client rewrites, "whole" or "streamed", so that an episode is more than one
    sample."""

    @property
    def environment(self) -> str:
        """The name of its environment; clients that require the same share one."""
        first = next(other for other in CLIENTS if other.requirements == self.requirements)
        return f"client-{first.name.replace(' ', '-')}"


CHAT_AND_RESPONSES = ("chat", "responses")
ALL = ("chat", "responses", "messages")

AI_SDK = [
    "ai@7.0.173",
    "@ai-sdk/openai@4.0.118",
    "@ai-sdk/openai-compatible@3.0.92",
    "@ai-sdk/anthropic@4.0.105",
    "zod@4.6.7",
]

CLIENTS = [
    Client("openai 1", "openai_chat", CHAT_AND_RESPONSES, ["openai>=1.66,<2"], "openai"),
    Client("openai 2", "openai_chat", CHAT_AND_RESPONSES, ["openai>=2,<3"], "openai"),
    Client("openai 3", "openai_chat", CHAT_AND_RESPONSES, ["openai>=3,<4"], "openai"),
    Client("anthropic", "anthropic_messages", ["messages"], ["anthropic"], "anthropic"),
    Client(
        "openai-agents", "openai_agents", CHAT_AND_RESPONSES, ["openai-agents"], "openai-agents"
    ),
    Client(
        "pydantic-ai",
        "pydantic_ai_agent",
        ALL,
        ["pydantic-ai-slim[openai,anthropic]"],
        "pydantic-ai-slim",
    ),
    Client(
        "langgraph",
        "langgraph_agent",
        ALL,
        ["langchain", "langchain-openai", "langchain-anthropic"],
        "langgraph",
    ),
    Client("litellm", "litellm_chat", ["chat"], ["litellm", "mcp"], "litellm"),
    Client("smolagents", "smolagents_agent", ["chat"], ["smolagents[openai]"], "smolagents"),
    Client(
        "CodeAgent",
        "smolagents_code",
        ["chat"],
        ["smolagents[openai]"],
        "smolagents",
        kind="CodeAgent",
        policy=writes_code,
    ),
    Client(
        "instructor",
        "instructor_models",
        ["chat"],
        ["instructor==1.17.0"],
        "instructor",
        policy=fills_in,
        changes={"streamed": "a retry leaves the answer that was refused out of `messages`"},
    ),
    Client(
        "dspy",
        "dspy_react",
        ["chat"],
        ["dspy==3.4.1"],
        "dspy",
        kind="ReAct",
        policy=fills_fields,
        changes=dict.fromkeys(
            ("whole", "streamed"), "each step retells the trajectory in one user message"
        ),
    ),
    Client("crewai", "crewai_agent", ["chat"], ["crewai==1.15.30"], "crewai"),
    Client("agno", "agno_agent", CHAT_AND_RESPONSES, ["agno==3.1.10", "openai==3.54.0"], "agno"),
    Client("haystack", "haystack_agent", CHAT_AND_RESPONSES, ["haystack-ai==3.4.0"], "haystack-ai"),
    Client(
        "semantic-kernel",
        "semantic_kernel_agent",
        ["chat"],
        ["semantic-kernel==1.45.0"],
        "semantic-kernel",
    ),
    Client(
        "llama-index",
        "llama_index_agent",
        ["chat"],
        ["llama-index-core==0.14.25", "llama-index-llms-openai-like==0.8.1"],
        "llama-index-core",
    ),
    Client(
        "autogen",
        "autogen_agent",
        ["chat"],
        ["autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5"],
        "autogen-agentchat",
    ),
    Client(
        "google-adk",
        "google_adk_agent",
        ["chat"],
        ["google-adk==2.13.0", "litellm==1.106.2", "mcp==2.3.0"],
        "google-adk",
    ),
    Client(
        "strands", "strands_agent", ["chat"], ["strands-agents[openai]==1.62.0"], "strands-agents"
    ),
    Client(
        "agent-framework",
        "agent_framework_agent",
        CHAT_AND_RESPONSES,
        ["agent-framework-openai==1.17.0"],
        "agent-framework-openai",
    ),
    Client(
        "mirascope",
        "mirascope_calls",
        CHAT_AND_RESPONSES,
        ["mirascope[openai]==2.8.2"],
        "mirascope",
    ),
    Client(
        "npm openai", "openai_sdk", CHAT_AND_RESPONSES, ["openai@7.57.0"], "openai", is_npm=True
    ),
    Client(
        "npm anthropic",
        "anthropic_sdk",
        ["messages"],
        ["@anthropic-ai/sdk@1.12.0"],
        "@anthropic-ai/sdk",
        is_npm=True,
    ),
    *(
        Client(
            f"npm ai {provider}",
            "ai_sdk",
            endpoints,
            AI_SDK,
            f"ai + @ai-sdk/{provider}",
            is_npm=True,
            provider=provider,
        )
        for provider, endpoints in (
            ("openai-compatible", ["chat"]),
            ("openai", CHAT_AND_RESPONSES),
            ("anthropic", ["messages"]),
        )
    ),
    Client(
        "npm langchain",
        "langchain_js",
        ALL,
        [
            "langchain@1.5.14",
            "@langchain/core@1.4.0",
            "@langchain/openai@1.6.0",
            "@langchain/anthropic@1.5.11",
        ],
        "langchain",
        is_npm=True,
    ),
]
