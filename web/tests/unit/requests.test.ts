// Options, settings, and requests as text.

import assert from "node:assert/strict";
import { test } from "node:test";
import { boundsOf, optionsOf, parseOption } from "../../src/model/options";
import { fieldsOf, NO_SETTINGS, withoutLent } from "../../src/model/settings";
import { asCurl, asPython } from "../../src/model/snippets";

const description = {
  components: {
    schemas: {
      Sampling: {
        properties: {
          stream: { type: ["boolean", "null"] },
          stop: { anyOf: [{ $ref: "#/components/schemas/StopString" }, { type: "null" }] },
          seed: { type: ["integer", "null"], minimum: -(2 ** 63), maximum: 2 ** 64 },
          top_p: { type: ["number", "null"], exclusiveMinimum: 0, maximum: 1, description: "Keep." },
          logit_bias: { type: ["object", "null"] },
          ignore_eos: { type: ["boolean", "null"] },
          temperature: { type: ["number", "null"], minimum: 0 },
        },
      },
    },
  },
};

const options = optionsOf(description);
const named = (name: string) => {
  const found = options.find((option) => option.name === name);
  assert.ok(found, name);
  return found;
};

test("options are the server's, the common ones first, less those that the page sets", () => {
  assert.deepEqual(
    options.map(({ name, kind }) => `${name} ${kind}`),
    ["temperature number", "top_p number", "seed integer", "stop texts", "logit_bias json", "ignore_eos flag"],
  );
});

test("bounds are the server's, and those of number types are not shown", () => {
  assert.equal(boundsOf(named("top_p")), "above 0 and at most 1");
  assert.equal(boundsOf(named("seed")), "");
  assert.deepEqual(parseOption(named("top_p"), "0"), { error: "This must be above 0 and at most 1." });
  assert.deepEqual(parseOption(named("top_p"), "0.5"), { value: 0.5 });
  assert.deepEqual(parseOption(named("seed"), "1.5"), { error: "This must be a whole number." });
});

test("settings become fields, and what cannot be sent is told and left out", () => {
  const settings = {
    ...NO_SETTINGS,
    options: { temperature: "0.7", top_p: "2", stop: "a\nb", ignore_eos: "true" },
    schema: "{",
    tools: "{}",
  };
  const { body, errors } = fieldsOf(settings, options);
  assert.deepEqual(body, { temperature: 0.7, stop: ["a", "b"], ignore_eos: true });
  assert.deepEqual(Object.keys(errors), ["top_p", "tools", "schema"]);
});

test("a schema and tools are sent as OpenAI has them", () => {
  const { body, errors } = fieldsOf({ ...NO_SETTINGS, schema: '{"type":"object"}', tools: "[]" }, options);
  assert.deepEqual(errors, {});
  assert.deepEqual(body["response_format"], {
    type: "json_schema",
    json_schema: { name: "answer", schema: { type: "object" } },
  });
  assert.deepEqual(body["tools"], []);
});

const request = {
  model: "m",
  messages: [{ role: "user", content: 'it\'s "so"' }],
  seed: 7,
  min_p: 0.1,
  ignore_eos: true,
  stream: true,
  return_token_origins: true,
};

test("a curl command quotes what a shell would take apart", () => {
  const text = asCurl(request, "http://h:1/", false);
  assert.match(text, /^curl http:\/\/h:1\/v1\/chat\/completions /);
  assert.ok(text.includes(`"it'\\''s \\"so\\""`), text);
  assert.doesNotMatch(text, /stream|origins|authorization/);
  assert.match(asCurl(request, "http://h:1/", true), /Bearer \$PACELINE_API_KEY/);
});

test("a Python program names what OpenAI's library knows and puts the rest beside it", () => {
  const text = asPython(request, "http://h:1/", false);
  assert.match(text, /base_url="http:\/\/h:1\/v1"/);
  assert.match(text, /\n {4}seed=7,\n/);
  assert.match(text, /extra_body=\{\n {8}"min_p": 0.1,\n {8}"ignore_eos": True,\n {4}\},/);
});

test("what was lent is given back, unless it was changed", () => {
  const lent = { schema: "{}", toolChoice: "required" };
  const used = { ...NO_SETTINGS, ...lent, system: "Be brief." };
  assert.deepEqual(withoutLent(used, lent), { ...NO_SETTINGS, system: "Be brief." });
  const changed = { ...used, schema: "[]" };
  assert.deepEqual(withoutLent(changed, lent), { ...NO_SETTINGS, system: "Be brief.", schema: "[]" });
});
