/* ggml_log.h: ggml and libllama print through a function of the process. Theirs is replaced by
 * one that remembers. */
#ifndef ENGINE_MODEL_GGML_LOG_H
#define ENGINE_MODEL_GGML_LOG_H

void quire__ggml_log_install(void);
void quire__ggml_log_clear(void);
/* The first error that the calling thread was told since, or else the last warning, in one line;
 * "no reason given" if nothing. */
const char *quire__ggml_log_last(void);

#endif
