"""Renders every template in templates/ with every conversation and writes the results to expected/.

The environment is set up as Python users of these templates set it up. Needs jinja2 3.1. Run it after changing
a template or conversations.json:  python make_expected.py
"""

import json
import pathlib

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
BOS, EOS = "<|begin|>", "<|end|>"


class Raised(Exception):
    pass


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def raise_exception(message):
    raise Raised(message)


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    env.filters["tojson"] = to_json
    env.globals["raise_exception"] = raise_exception
    # A rendering must not depend on the day: conversations give the date as `date_string`.
    env.globals["strftime_now"] = lambda form: raise_exception("the date was asked for")
    return env


def render(template, case):
    variables = {
        "messages": case["messages"],
        "tools": case.get("tools"),
        "documents": case.get("documents"),
        "add_generation_prompt": case.get("add_generation_prompt", False),
        "bos_token": BOS,
        "eos_token": EOS,
        **case.get("extra", {}),
    }
    try:
        return {"text": template.render(**variables)}
    except Raised as error:
        return {"raised": str(error)}
    except (jinja2.TemplateError, TypeError) as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def main():
    conversations = json.loads((HERE / "conversations.json").read_text("utf-8"))
    (HERE / "expected").mkdir(exist_ok=True)
    for path in sorted((HERE / "templates").glob("*.jinja")):
        template = environment().from_string(path.read_bytes().decode("utf-8"))
        results = {case["name"]: render(template, case) for case in conversations}
        text = json.dumps(results, ensure_ascii=False, indent=1)
        (HERE / "expected" / f"{path.stem}.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
