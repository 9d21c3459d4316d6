/* tiny_model.c: see tiny_model.h. */
#include "tiny_model.h"

#include <ggml.h>
#include <gguf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 32, N_TOKENS = 264, NORMAL = 1, UNKNOWN = 2, CONTROL = 3, BYTE = 6 };

static void set_vocabulary(struct gguf_context *file, bool chat) {
    static char bytes[256][8];
    const char *texts[N_TOKENS] = {"<unk>", "<s>", "</s>"};
    float scores[N_TOKENS];
    int32_t types[N_TOKENS] = {UNKNOWN, CONTROL, CONTROL};
    for (int i = 0; i < 256; i++) {
        snprintf(bytes[i], sizeof bytes[i], "<0x%02X>", i);
        texts[TINY_BYTE_0 + i] = bytes[i];
        types[TINY_BYTE_0 + i] = BYTE;
    }
    static const char *const others[] = {"<|im_start|>", "<|im_end|>", "</", "s>"};
    for (int i = 0; i < 4; i++) {
        texts[TINY_IM_START + i] = others[i];
        types[TINY_IM_START + i] = i < 2 ? CONTROL : NORMAL;
    }
    static char word[TINY_LONG_BYTES + 1];
    memset(word, 'x', TINY_LONG_BYTES);
    texts[TINY_LONG] = word;
    types[TINY_LONG] = NORMAL;
    for (int i = 0; i < N_TOKENS; i++)
        scores[i] = types[i] == CONTROL ? 0.0f : -(float)i;
    gguf_set_val_str(file, "tokenizer.ggml.model", "llama");
    gguf_set_arr_str(file, "tokenizer.ggml.tokens", texts, N_TOKENS);
    gguf_set_arr_data(file, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores, N_TOKENS);
    gguf_set_arr_data(file, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types, N_TOKENS);
    gguf_set_val_u32(file, "tokenizer.ggml.bos_token_id", TINY_BOS);
    gguf_set_val_u32(file, "tokenizer.ggml.eos_token_id", TINY_EOS);
    gguf_set_val_bool(file, "tokenizer.ggml.add_space_prefix", false);
    if (chat)
        gguf_set_val_str(file, "tokenizer.chat_template", "chatml");
}

static void set_shape(struct gguf_context *file) {
    gguf_set_val_str(file, "general.architecture", "llama");
    gguf_set_val_str(file, "general.name", "tiny");
    gguf_set_val_u32(file, "llama.context_length", TINY_CONTEXT);
    gguf_set_val_u32(file, "llama.embedding_length", WIDTH);
    gguf_set_val_u32(file, "llama.block_count", 1);
    gguf_set_val_u32(file, "llama.feed_forward_length", WIDTH);
    gguf_set_val_u32(file, "llama.attention.head_count", 1);
    gguf_set_val_u32(file, "llama.attention.head_count_kv", 1);
    gguf_set_val_u32(file, "llama.rope.dimension_count", WIDTH);
    gguf_set_val_f32(file, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_set_val_f32(file, "llama.rope.freq_base", 10000.0f);
}

static void add(struct gguf_context *file, struct ggml_context *memory, const char *name,
                int64_t n_out) {
    struct ggml_tensor *tensor = n_out > 0 ? ggml_new_tensor_2d(memory, GGML_TYPE_F32, WIDTH, n_out)
                                           : ggml_new_tensor_1d(memory, GGML_TYPE_F32, WIDTH);
    ggml_set_name(tensor, name);
    memset(tensor->data, 0, ggml_nbytes(tensor));
    gguf_add_tensor(file, tensor);
}

static void add_weights(struct gguf_context *file, struct ggml_context *memory) {
    static const char *const matrices[] = {"attn_q",   "attn_k", "attn_v",  "attn_output",
                                           "ffn_gate", "ffn_up", "ffn_down"};
    char name[64];
    add(file, memory, "token_embd.weight", N_TOKENS);
    add(file, memory, "output.weight", N_TOKENS);
    add(file, memory, "output_norm.weight", 0);
    add(file, memory, "blk.0.attn_norm.weight", 0);
    add(file, memory, "blk.0.ffn_norm.weight", 0);
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
        snprintf(name, sizeof name, "blk.0.%s.weight", matrices[i]);
        add(file, memory, name, WIDTH);
    }
}

bool tiny_model_write(const char *path, bool chat) {
    struct ggml_context *memory = ggml_init((struct ggml_init_params){.mem_size = (size_t)1 << 20});
    struct gguf_context *file = gguf_init_empty();
    bool good = memory && file;
    if (good) {
        set_shape(file);
        set_vocabulary(file, chat);
        add_weights(file, memory);
        good = gguf_write_to_file(file, path, false);
    }
    gguf_free(file);
    ggml_free(memory);
    return good;
}
