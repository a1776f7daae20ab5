"""OpenAI's Agents SDK with its default settings, over Responses and over chat completions."""

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)

from subject import QUESTION, Ball
from common import BASE, KEY, MODEL, run

set_tracing_disabled(True)
client = openai.AsyncOpenAI(base_url=f"{BASE}/v1", api_key=KEY)
MODELS = [kind(model=MODEL, openai_client=client) for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel)]
thrown = []


@function_tool
def throw(ball: Ball) -> str:
    """Throws a ball."""
    thrown.append(ball)
    return f"The {ball.colour} ball flew far."


def a_text_comes():
    for model in MODELS:
        agent = Agent(name="teller", model=model, model_settings=ModelSettings(max_tokens=32))
        assert Runner.run_sync(agent, QUESTION).final_output, model


def an_output_has_the_type_asked_for():
    for model in MODELS:
        agent = Agent(name="teller", instructions="Say what is there.", model=model, output_type=Ball)
        assert isinstance(Runner.run_sync(agent, QUESTION).final_output, Ball), model


def a_tool_is_called_and_its_answer_used():
    for model in MODELS:
        thrown.clear()
        settings = ModelSettings(tool_choice="required", max_tokens=200)
        agent = Agent(name="thrower", model=model, tools=[throw], model_settings=settings)
        # After the call the choice is the model's again, and it has to come to an end.
        result = Runner.run_sync(agent, QUESTION, max_turns=12)
        assert thrown and all(isinstance(ball, Ball) for ball in thrown), model
        assert result.final_output, model


run(a_text_comes, an_output_has_the_type_asked_for, a_tool_is_called_and_its_answer_used)
