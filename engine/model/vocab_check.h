/* vocab_check.h: what libllama would abort on, refused before it looks. */
#ifndef ENGINE_MODEL_VOCAB_CHECK_H
#define ENGINE_MODEL_VOCAB_CHECK_H

#include "model/gguf_file.h"

/* The tokenizer is of a kind that is known to be safe; its list of tokens is not empty, no longer
 * than n_vocab, has none twice, and can spell every byte where libllama counts on that. E_MODEL
 * names what is wrong. */
quire_status quire__vocab_check(const quire__gguf *file, int32_t n_vocab);

#endif
