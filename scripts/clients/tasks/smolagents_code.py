from smolagents import CodeAgent
from smolagents_task import play

play(CodeAgent)
