"""Pydantic AI with its default settings: texts, outputs of a type, tools."""

from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from subject import QUESTION, Ball
from common import BASE, KEY, MODEL, run

model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{BASE}/v1", api_key=KEY))


def a_text_comes():
    assert Agent(model).run_sync(QUESTION, model_settings={"max_tokens": 32}).output


def an_output_has_the_type_asked_for():
    assert isinstance(Agent(model, output_type=Ball).run_sync(QUESTION).output, Ball)


def it_does_so_by_a_tool_and_by_a_schema():
    for output in [ToolOutput(Ball), NativeOutput(Ball)]:
        assert isinstance(Agent(model, output_type=output).run_sync(QUESTION).output, Ball), output


def one_of_several_types_is_chosen():
    class Kite(Ball):
        """A kite."""

    assert isinstance(Agent(model, output_type=[Ball, Kite]).run_sync(QUESTION).output, Ball)


run(
    a_text_comes,
    an_output_has_the_type_asked_for,
    it_does_so_by_a_tool_and_by_a_schema,
    one_of_several_types_is_chosen,
)
