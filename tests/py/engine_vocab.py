"""Vocabularies for tiny models: `models.make(path, arch, more_keys=vocabulary(...))`."""

import gguf

KINDS = gguf.TokenType


def byte_alphabet():
    """GPT-2's character for each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(other)) for byte in range(256)]


def vocabulary(kind, tokens, types=None, merges=None, scores=None, **keys):
    """Replaces the whole vocabulary. tokens: texts; keys: name without "tokenizer.ggml." -> bool, int or str."""
    def more_keys(writer):
        entries = writer.kv_data[0]
        for name in [name for name in entries if name.startswith("tokenizer.")]:
            del entries[name]
        writer.add_tokenizer_model(kind)
        writer.add_array("tokenizer.ggml.tokens", list(tokens))
        if types is not None:
            writer.add_array("tokenizer.ggml.token_type", [int(t) for t in types])
        if scores is not None:
            writer.add_array("tokenizer.ggml.scores", [float(s) for s in scores])
        if merges is not None:
            writer.add_array("tokenizer.ggml.merges", list(merges))
        for name, value in keys.items():
            if name == "chat_template":
                writer.add_string("tokenizer.chat_template", value)
            elif isinstance(value, bool):
                writer.add_bool("tokenizer.ggml." + name, value)
            elif isinstance(value, int):
                writer.add_uint32("tokenizer.ggml." + name, value)
            else:
                writer.add_string("tokenizer.ggml." + name, value)
    return more_keys


# What templates of libllama mark turns with.
MARKERS = ["<|im_start|>", "<|im_end|>", "[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>", "<|start_header_id|>",
           "<|end_header_id|>", "<|eot_id|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|endoftext|>"]


def sentence_piece(marker_type=KINDS.CONTROL, words=(), **keys):
    """Bytes, markers, words; "</" and "s>", which SentencePiece would put together to the control token "</s>"."""
    entries = [("<unk>", KINDS.UNKNOWN), ("<s>", KINDS.CONTROL), ("</s>", KINDS.CONTROL)]
    entries += [(f"<0x{i:02X}>", KINDS.BYTE) for i in range(256)]
    entries += [(marker, marker_type) for marker in MARKERS]
    entries += [(word, KINDS.NORMAL) for word in ["</", "s>", "\u2581a", "us", "er", "user", "\n\n", *words]]
    return vocabulary("llama", [t for t, _ in entries], [k for _, k in entries],
                      scores=[0.0 if k == KINDS.CONTROL else -float(i) for i, (_, k) in enumerate(entries)],
                      bos_token_id=1, eos_token_id=2, **keys)


def byte_pairs(marker_type=KINDS.CONTROL, **keys):
    """Byte pairs: a few merges, one of them across the new line that many templates put before a message."""
    merges = ["u s", "e r", "us er", "\u010a \u010a", "h e"]
    entries = [(char, KINDS.NORMAL) for char in byte_alphabet()]
    entries += [(merge.replace(" ", ""), KINDS.NORMAL) for merge in merges]
    entries += [("<s>", KINDS.CONTROL), ("</s>", KINDS.CONTROL)] + [(marker, marker_type) for marker in MARKERS]
    texts = [t for t, _ in entries]
    return vocabulary("gpt2", texts, [k for _, k in entries], merges, bos_token_id=texts.index("<s>"),
                      eos_token_id=texts.index("</s>"), **keys)
