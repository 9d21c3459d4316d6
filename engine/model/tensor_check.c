/* tensor_check.c: by name before loading, by mark after it. */
#include "model/tensor_check.h"

#include <string.h>

static const struct {
    const char *part, *meaning; /* of the tensor's name */
} UNSUPPORTED[] = {
    {".attn_qkv.", "q, k and v in one tensor"},
    {"_exps.", "a mixture of experts"},
    {".ffn_gate_inp.", "a mixture of experts"},
    {"rope_factors_", "LongRoPE"},
};

quire_status quire__tensors_refuse(const quire__gguf *file) {
    for (struct ggml_tensor *t = ggml_get_first_tensor(file->tensors); t;
         t = ggml_get_next_tensor(file->tensors, t))
        for (size_t i = 0; i < sizeof UNSUPPORTED / sizeof *UNSUPPORTED; i++)
            if (strstr(t->name, UNSUPPORTED[i].part))
                return quire__fail(QUIRE_E_MODEL,
                                   "'%s': tensor %s means %s, which is not supported", file->path,
                                   t->name, UNSUPPORTED[i].meaning);
    return QUIRE_OK;
}

quire_status quire__tensors_all_used(const quire__gguf *file) {
    for (struct ggml_tensor *t = ggml_get_first_tensor(file->tensors); t;
         t = ggml_get_next_tensor(file->tensors, t)) {
        if (!(t->flags & QUIRE__TENSOR_USED))
            return quire__fail(QUIRE_E_MODEL,
                               "'%s': tensor %s is not one that the architecture %s has here",
                               file->path, t->name, file->architecture);
        t->flags &= ~QUIRE__TENSOR_USED;
    }
    return QUIRE_OK;
}
