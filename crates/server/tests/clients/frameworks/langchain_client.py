"""LangChain's client for OpenAI with its default settings: texts, streams, tools and structured output."""

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

from subject import QUESTION, Ball
from common import BASE, KEY, MODEL, run

model = ChatOpenAI(base_url=f"{BASE}/v1", api_key=KEY, model=MODEL)
short = ChatOpenAI(base_url=f"{BASE}/v1", api_key=KEY, model=MODEL, max_tokens=16, temperature=0)


@tool(args_schema=Ball)
def throw(colour, size, new):
    """Throws a ball."""
    return f"The {colour} ball flew far."


def a_text_comes_whole_and_in_pieces():
    whole = short.invoke(QUESTION)
    assert whole.content and whole.usage_metadata["output_tokens"] <= 16
    assert "".join(chunk.text for chunk in short.stream(QUESTION)) == whole.content
    assert OpenAI(base_url=f"{BASE}/v1", api_key=KEY, model=MODEL, max_tokens=8).invoke("Once upon a time")


def structured_output_is_an_object():
    assert isinstance(model.with_structured_output(Ball).invoke(QUESTION), Ball)


def function_calling_is_an_object():
    assert isinstance(model.with_structured_output(Ball, method="function_calling").invoke(QUESTION), Ball)


def a_tool_that_must_be_called_is_called_and_answered():
    reply = model.bind_tools([throw], tool_choice="any").invoke(QUESTION)
    call = reply.tool_calls[0]
    assert call["name"] == "throw"
    Ball.model_validate(call["args"])
    result = throw.invoke(call)
    assert isinstance(result, ToolMessage) and result.content.endswith("flew far.")
    answer = short.bind_tools([throw], tool_choice="none").invoke([HumanMessage(QUESTION), reply, result])
    assert answer.content and not answer.tool_calls


def tools_on_offer_do_no_harm():
    reply = short.bind_tools([throw]).invoke(QUESTION)
    assert reply.content or reply.tool_calls
    for call in reply.tool_calls:
        Ball.model_validate(call["args"])


run(
    a_text_comes_whole_and_in_pieces,
    structured_output_is_an_object,
    function_calling_is_an_object,
    a_tool_that_must_be_called_is_called_and_answered,
    tools_on_offer_do_no_harm,
)
