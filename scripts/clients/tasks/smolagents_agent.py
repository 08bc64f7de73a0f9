from smolagents import ToolCallingAgent
from smolagents_task import play

play(ToolCallingAgent)
