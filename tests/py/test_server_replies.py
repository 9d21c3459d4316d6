"""What server/api makes, beside things nobody here wrote: replies must be what the `openai` package reads, and texts that a
JSON schema's grammar allows must be valid for the `jsonschema` package."""

import json
import os
import pathlib
import subprocess

import jsonschema
import openai.types
import openai.types.chat
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.pagination import SyncPage

import engine_models as models
from engine_vocab import sentence_piece

TYPES = {"ChatCompletion": openai.types.chat.ChatCompletion, "Completion": openai.types.Completion,
         "ChatCompletionChunk": openai.types.chat.ChatCompletionChunk, "SyncPage": SyncPage[openai.types.Model]}


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """Runs engine_server_samples on a tiny model, and returns the lines it prints."""
    model = models.make(tmp_path_factory.mktemp("api") / "tiny.gguf", "llama",
                        more_keys=sentence_piece(chat_template="chatml"))
    program = pathlib.Path(os.environ["QUIRE_ENGINE_PROGRAMS"]) / "engine_server_samples"

    def run(*arguments, body=None):
        done = subprocess.run([program, model, *map(str, arguments)], capture_output=True, text=True, encoding="utf-8",
                              input=json.dumps(body) if body else None, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip("\n").split("\n")

    return run


@pytest.fixture(scope="module")
def replies(samples):
    """A list of (name of a type, JSON) for each request."""
    requests = []
    for line in samples("replies"):
        kind, text = line.split(" ", 1)
        if kind == "request":
            requests.append([])
        else:
            requests[-1].append((kind, text))
    return requests


def test_replies_are_openais(replies):
    """Strictly, and without a field that the types do not know."""
    for reply in replies:
        for kind, text in reply:
            if kind not in TYPES or text == "[DONE]":
                continue
            reply_json = json.loads(text)
            for choice in reply_json.get("choices", []):
                if kind == "Completion" and choice["finish_reason"] is None:
                    choice["finish_reason"] = "stop"  # the type is that of whole replies; OpenAI streams null as well
            made = TYPES[kind].model_validate(reply_json, strict=True)
            assert not made.model_extra, (kind, text)
            if kind != "SyncPage":
                assert made.model_dump(exclude_unset=True, mode="json") == reply_json


def test_streams_end_with_done(replies):
    streams = [reply for reply in replies if "chunk" in reply[0][1]]
    assert len(streams) == 3
    for reply in streams:
        assert reply[-1][1] == "[DONE]" and [text for _, text in reply].count("[DONE]") == 1


def test_openai_adds_chunks_up(replies):
    """The client's own accumulator makes of the chunks what the whole reply says."""
    whole = [json.loads(reply[0][1]) for reply in replies if reply[0][0] == "ChatCompletion"]
    streams = [reply for reply in replies if reply[0][0] == "ChatCompletionChunk"]
    assert len(whole) == len(streams) == 3
    for wanted, reply in zip(whole, streams):
        state = ChatCompletionStreamState()
        for kind, text in reply:
            if kind == "ChatCompletionChunk" and text != "[DONE]":
                state.handle_chunk(TYPES[kind].model_validate(json.loads(text)))
        made = json.loads(state.get_final_completion().model_dump_json())
        for ours, theirs in zip(wanted["choices"], made["choices"], strict=True):
            assert theirs["finish_reason"] == ours["finish_reason"]
            assert theirs["message"]["content"] == ours["message"]["content"]
            calls = [(c["id"], c["function"]["name"], c["function"]["arguments"])
                     for c in theirs["message"]["tool_calls"] or []]
            assert calls == [(c["id"], c["function"]["name"], c["function"]["arguments"])
                             for c in ours["message"].get("tool_calls", [])]
            if ours["logprobs"]:
                assert theirs["logprobs"]["content"] == ours["logprobs"]["content"]


SCHEMAS = {
    "any": True,
    "object": {"type": "object"},
    "array": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 5},
    "strings": {"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 6}, "minItems": 1},
    "strict": {"type": "object", "additionalProperties": False, "required": ["name", "age", "tags", "kind"], "properties": {
        "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string"}}, "kind": {"enum": ["a", "b\"c", None, 1.5]}}},
    "optional": {"type": "object", "required": ["b"], "properties": {
        "a": {"type": "boolean"}, "b": {"type": "null"}, "c": {"const": [1, {"x": "y"}]}, "d": {"type": ["string", "null"]}}},
    "additional": {"type": "object", "additionalProperties": {"type": "string"}, "properties": {
        "ab": {"type": "integer"}, "a": {"type": "integer"}, "b]": {"type": "integer"}, "": {"type": "integer"}}},
    "anything else": {"type": "object", "additionalProperties": True, "properties": {"a": {"type": "integer"}}},
    "integers": {"type": "array", "minItems": 3, "items": {"type": "integer", "minimum": -123, "exclusiveMaximum": 4567}},
    "patterns": {"type": "object", "required": ["d", "t", "u"], "properties": {
        "d": {"type": "string", "pattern": "^\\d{4}-(0[1-9]|1[0-2])-[0-3]\\d$"}, "t": {"type": "string", "pattern": "[A-F]+x?"},
        "u": {"type": "string", "pattern": "^[^\\s\"@]+@(\\w|-){1,8}\\.(com|org)$"}}},
    "any of": {"anyOf": [{"type": "object", "properties": {"k": {"const": "x"}, "v": {"type": "integer"}},
                          "required": ["k", "v"]}, {"type": "array", "items": {"enum": [1, 2]}}]},
    "linked": {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "required": ["value", "next"], "properties": {
        "value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}}},
    "pydantic": {"title": "Order", "type": "object", "required": ["item", "count"], "properties": {
        "item": {"$ref": "#/$defs/Item"}, "count": {"title": "Count", "type": "integer", "exclusiveMinimum": 0},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}},
        "$defs": {"Item": {"title": "Item", "type": "object", "required": ["sku"], "properties": {
            "sku": {"type": "string", "minLength": 3, "maxLength": 8}, "price": {"type": "number", "description": "EUR"}}}}},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_texts_are_valid(samples, name):
    """Texts that the grammar allows, drawn at random, are valid JSON and valid under the schema."""
    schema = SCHEMAS[name]
    body = {"messages": [{"role": "user", "content": "go"}], "response_format": {
        "type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
    texts = [json.loads(line) for line in samples("texts", 60, 1, body=body)]
    validator = jsonschema.Draft202012Validator(schema)
    ended = [text for text in texts if text]
    assert len(ended) >= 20, "most texts did not end"
    for text in ended:
        validator.validate(json.loads(text, object_pairs_hook=no_duplicates))
    assert len(set(ended)) > 5, "the grammar allows next to nothing"


def no_duplicates(pairs):
    assert len({key for key, _ in pairs}) == len(pairs), pairs
    return dict(pairs)


def test_json_mode_gives_objects(samples):
    body = {"messages": [{"role": "user", "content": "go"}], "response_format": {"type": "json_object"}}
    texts = [json.loads(line) for line in samples("texts", 40, 5, body=body)]
    assert sum(isinstance(json.loads(text), dict) for text in texts if text) >= 20


def test_required_calls_fit_the_parameters(samples):
    """As the text of the model; the unit test looks at how it becomes a call."""
    parameters = {"a": SCHEMAS["strict"], "b": SCHEMAS["integers"] | {"type": "array"}}
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in parameters.items()]
    body = {"messages": [{"role": "user", "content": "go"}], "tools": tools, "tool_choice": "required"}
    seen = set()
    for line in samples("texts", 40, 3, body=body):
        for part in json.loads(line).split("</tool_call>")[:-1]:
            call = json.loads(part.strip().removeprefix("<tool_call>"))
            jsonschema.validate(call["arguments"], parameters[call["name"]])
            seen.add(call["name"])
    assert seen == {"a", "b"}
