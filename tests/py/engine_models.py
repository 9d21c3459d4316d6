"""Tiny models with random weights, one for each architecture, written with the `gguf` package.

bench/made_models.py makes large ones with it."""

import gguf
import numpy as np

VOCAB = 320
CONTEXT = 4096

# Head sizes are such that every cache codec can serve them; windows are short and not a multiple of a page.
SHAPES = {
    "llama": dict(embd=96, ff=160, heads=6, kv=2, dim=32, layers=3),
    "qwen2": dict(embd=128, ff=160, heads=4, kv=2, dim=32, layers=3),
    "qwen3": dict(embd=96, ff=160, heads=6, kv=3, dim=48, layers=3),
    "gemma3": dict(embd=96, ff=160, heads=4, kv=1, dim=64, layers=7, window=75),
    "gemma4": dict(embd=96, ff=160, heads=4, kv=1, dim=64, layers=9, window=75, swa_dim=32, shared=4, per_layer=32),
}


class Maker:
    def __init__(self, path, arch, seed=1, dtype=np.float32, gate_gain=1.0, **changes):
        self.arch, self.shape, self.gate_gain = arch, {**SHAPES[arch], **changes}, gate_gain
        self.random = np.random.default_rng(seed)
        self.dtype = dtype
        self.writer = gguf.GGUFWriter(str(path), arch)
        self.tensors = {}

    def matrix(self, name, n_out, n_in, gain=1.0):
        weight = self.random.standard_normal((n_out, n_in)) * gain / np.sqrt(n_in)
        self.tensors[name + ".weight"] = weight.astype(self.dtype)

    def vector(self, name, n, mean=1.0, spread=0.2):
        self.tensors[name] = (mean + spread * self.random.standard_normal(n)).astype(np.float32)

    def vocabulary(self):
        """Bytes and a few words, in the manner of SentencePiece."""
        kinds = gguf.TokenType
        tokens = [("<unk>", kinds.UNKNOWN), ("<s>", kinds.CONTROL), ("</s>", kinds.CONTROL)]
        tokens += [(f"<0x{i:02X}>", kinds.BYTE) for i in range(256)]
        tokens += [("\u2581w%d" % i, kinds.NORMAL) for i in range(VOCAB - len(tokens))]
        w = self.writer
        w.add_tokenizer_model("llama")
        w.add_token_list([t for t, _ in tokens])
        w.add_token_scores([-float(i) for i in range(VOCAB)])
        w.add_token_types([int(k) for _, k in tokens])
        w.add_bos_token_id(1)
        w.add_eos_token_id(2)

    def keys(self):
        s, w = self.shape, self.writer
        w.add_name(f"tiny {self.arch}")
        w.add_context_length(s.get("context", CONTEXT))
        w.add_embedding_length(s["embd"])
        w.add_block_count(s["layers"])
        w.add_feed_forward_length([self.ff(i) for i in range(s["layers"])] if s.get("shared_ff") else s["ff"])
        w.add_head_count(s["heads"])
        w.add_head_count_kv(s["kv"])
        w.add_key_length(s["dim"])
        w.add_value_length(s["dim"])
        w.add_rope_dimension_count(s["dim"])
        w.add_layer_norm_rms_eps(1e-5)
        w.add_rope_freq_base(s.get("rope_base", 500000.0 if self.arch == "llama" else 1000000.0))
        if "window" in s:
            w.add_sliding_window(s["window"])
        if self.arch == "gemma3":
            w.add_final_logit_softcapping(20.0)
        if self.arch == "gemma4":
            w.add_sliding_window_pattern([self.slides(i) for i in range(s["layers"])])
            w.add_key_length_swa(s["swa_dim"])
            w.add_value_length_swa(s["swa_dim"])
            w.add_rope_dimension_count_swa(s["swa_dim"])
            w.add_rope_freq_base_swa(10000.0)
            w.add_shared_kv_layers(s["shared"])
            w.add_embedding_length_per_layer_input(s["per_layer"])
            w.add_final_logit_softcapping(30.0)

    def stores(self, layer):
        """Whether the layer has K and V of its own."""
        return layer < self.shape["layers"] - self.shape.get("shared", 0)

    def ff(self, layer):
        """Layers that share K and V may have another feed-forward length."""
        return self.shape["ff"] if self.stores(layer) else self.shape.get("shared_ff", self.shape["ff"])

    def slides(self, layer):
        """Gemma 4: the last of the layers that store must be global, the one before it sliding."""
        return layer % 5 != 4

    def layer(self, i):
        s, blk = self.shape, f"blk.{i}."
        dim = s["swa_dim"] if self.arch == "gemma4" and self.slides(i) else s["dim"]
        embd, q, kv = s["embd"], s["heads"] * dim, s["kv"] * dim
        stores, ff = self.stores(i), self.ff(i)
        self.vector(blk + "attn_norm.weight", embd)
        self.matrix(blk + "attn_q", q, embd, 2.0)
        if stores:
            self.matrix(blk + "attn_k", kv, embd, 2.0)
            if not (self.arch == "gemma4" and i == 4):  # there, v is k before its norm
                self.matrix(blk + "attn_v", kv, embd)
        self.matrix(blk + "attn_output", embd, q)
        if self.arch == "qwen2":
            self.vector(blk + "attn_q.bias", q, 0.0, 1.0)
            self.vector(blk + "attn_k.bias", kv, 0.0, 3.0)
            self.vector(blk + "attn_v.bias", kv, 0.0, 0.5)
        if self.arch in ("qwen3", "gemma3", "gemma4"):
            # Gemma 4 does not divide logits by the root of the head size: its trained norm of q does.
            size = 2 / np.sqrt(dim) if self.arch == "gemma4" else 1.0
            self.vector(blk + "attn_q_norm.weight", dim, size, 0.2 * size)
            if stores:
                self.vector(blk + "attn_k_norm.weight", dim)
        if self.arch in ("gemma3", "gemma4"):
            self.vector(blk + "post_attention_norm.weight", embd)
            self.vector(blk + "post_ffw_norm.weight", embd)
        if self.arch == "gemma4":
            self.vector(blk + "layer_output_scale.weight", 1, 1.0, 0.1)
            self.matrix(blk + "inp_gate", s["per_layer"], embd, self.gate_gain)
            self.matrix(blk + "proj", embd, s["per_layer"])
            self.vector(blk + "post_norm.weight", embd)
        self.vector(blk + "ffn_norm.weight", embd)
        self.matrix(blk + "ffn_gate", ff, embd, self.gate_gain)
        self.matrix(blk + "ffn_up", ff, embd)
        self.matrix(blk + "ffn_down", embd, ff)

    def fill(self):
        s = self.shape
        self.vocabulary()
        self.keys()
        self.matrix("token_embd", VOCAB, s["embd"], np.sqrt(s["embd"]) if "gemma" not in self.arch else 1.0)
        self.vector("output_norm.weight", s["embd"])
        if self.arch == "llama":
            self.matrix("output", VOCAB, s["embd"])
            self.vector("rope_freqs.weight", s["dim"] // 2, 2.0, 0.3)
        if self.arch == "gemma4":
            self.vector("rope_freqs.weight", s["dim"] // 2, 2.0, 0.3)
            all_layers = s["per_layer"] * s["layers"]
            self.matrix("per_layer_token_embd", VOCAB, all_layers, np.sqrt(all_layers))
            self.matrix("per_layer_model_proj", all_layers, s["embd"])
            self.vector("per_layer_proj_norm.weight", s["per_layer"])
        for i in range(s["layers"]):
            self.layer(i)

    def add_tensors(self):
        for name, data in self.tensors.items():
            self.writer.add_tensor(name, data)

    def write(self):
        self.add_tensors()
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def make(path, arch, **options):
    """Writes the model and returns its path. `without` names a tensor to leave out, `spoil` changes it: name -> array;
    `extra` are tensors that it should not have, `more_keys` gets the writer."""
    without, spoil = options.pop("without", None), options.pop("spoil", {})
    extra, more_keys = options.pop("extra", {}), options.pop("more_keys", lambda writer: None)
    maker = Maker(path, arch, **options)
    maker.fill()
    more_keys(maker.writer)
    maker.tensors.pop(without, None)
    maker.tensors.update(extra)
    for name, change in spoil.items():
        maker.tensors[name] = change(maker.tensors[name])
    maker.write()
    return path
