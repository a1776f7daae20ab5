"""The official OpenAI client with embeddings: bytes by default, numbers, lists, token ids, errors."""

import asyncio
import math

import openai
from openai.types import CreateEmbeddingResponse

from common import BASE, KEY, MODEL, raises, run

client = openai.OpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0, timeout=60)
TEXT = "Once upon a time there was a fox."


def vector(**more):
    return client.embeddings.create(model=MODEL, input=TEXT, **more).data[0].embedding


def bytes_and_numbers_are_the_same():
    # Without a format the client asks for bytes and turns them into numbers.
    reply = client.embeddings.create(model=MODEL, input=TEXT)
    CreateEmbeddingResponse.model_validate(reply.to_dict())
    assert reply.model == MODEL and reply.object == "list"
    assert reply.usage.prompt_tokens == reply.usage.total_tokens > 0
    found = reply.data[0].embedding
    numbers = vector(encoding_format="float")
    assert len(found) == len(numbers)
    assert all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) for a, b in zip(found, numbers))
    assert math.isclose(math.hypot(*found), 1, rel_tol=1e-5)


def a_list_has_a_vector_for_each_text():
    texts = ["a fox", "a hen", "a house"]
    reply = client.embeddings.create(model=MODEL, input=texts)
    assert [row.index for row in reply.data] == [0, 1, 2]
    for text, row in zip(texts, reply.data):
        alone = client.embeddings.create(model=MODEL, input=text).data[0].embedding
        assert list(alone) == list(row.embedding)


def token_ids_are_taken():
    ids = [1, 2, 3]
    one = client.embeddings.create(model=MODEL, input=ids)
    two = client.embeddings.create(model=MODEL, input=[ids, ids[:2]])
    assert list(one.data[0].embedding) == list(two.data[0].embedding)
    assert two.usage.prompt_tokens == 5


def dimensions_and_extensions_are_taken():
    short = vector(dimensions=6, user="somebody")
    assert len(short) == 6 and math.isclose(math.hypot(*short), 1, rel_tol=1e-5)
    raw = vector(extra_body={"pooling": "last", "normalize": False})
    assert not math.isclose(math.hypot(*raw), 1, rel_tol=1e-3)


def errors_have_their_kind():
    raises(openai.BadRequestError, lambda: vector(dimensions=1 << 20), "dimensions")
    raises(openai.BadRequestError, lambda: client.embeddings.create(model=MODEL, input=""), "input")
    raises(openai.NotFoundError, lambda: client.embeddings.create(model="other", input=TEXT))


def many_at_once():
    async def all_of_them():
        many = openai.AsyncOpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0, timeout=60)
        calls = [many.embeddings.create(model=MODEL, input=f"text {i}") for i in range(12)]
        return await asyncio.gather(*calls)

    for index, reply in enumerate(asyncio.run(all_of_them())):
        alone = client.embeddings.create(model=MODEL, input=f"text {index}").data[0].embedding
        assert list(reply.data[0].embedding) == list(alone)


run(
    bytes_and_numbers_are_the_same,
    a_list_has_a_vector_for_each_text,
    token_ids_are_taken,
    dimensions_and_extensions_are_taken,
    errors_have_their_kind,
    many_at_once,
)
