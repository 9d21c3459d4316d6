/* tiny_model.h: a model for tests that need a vocabulary and a chat template. Its weights are 0. */
#ifndef TESTS_ENGINE_TINY_MODEL_H
#define TESTS_ENGINE_TINY_MODEL_H

#include <stdbool.h>
#include <stdint.h>

enum {
    TINY_BOS = 1,
    TINY_EOS = 2,
    TINY_BYTE_0 = 3, /* token of byte 0; the other bytes follow */
    TINY_IM_START = 259,
    TINY_IM_END = 260,
    TINY_LONG = 263, /* a word of TINY_LONG_BYTES */
    TINY_LONG_BYTES = 600,
    TINY_CONTEXT = 4096
};

/* Writes a GGUF file. SentencePiece; the tokens are <unk> <s> </s>, all bytes, <|im_start|>,
 * <|im_end|>, then "</", "s>", from which plain text puts "</s>" together, and a long word. chat:
 * with the template ChatML. */
bool tiny_model_write(const char *path, bool chat);

#endif
