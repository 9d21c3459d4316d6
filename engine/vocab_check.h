/* vocab_check.h: what libllama would abort on, refused before it looks. */
#ifndef ENGINE_VOCAB_CHECK_H
#define ENGINE_VOCAB_CHECK_H

#include "gguf_file.h"

/* The list of tokens is there, is no longer than n_vocab, and has no token twice. E_MODEL names what is wrong. */
quire_status quire__vocab_check(const quire__gguf *file, int32_t n_vocab);

#endif
