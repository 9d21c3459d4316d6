/* ggml_log.h: the process-wide log function of ggml and libllama, replaced by one that remembers
 * the message instead of printing it. */
#ifndef ENGINE_MODEL_GGML_LOG_H
#define ENGINE_MODEL_GGML_LOG_H

void quire__ggml_log_install(void);
void quire__ggml_log_clear(void);
/* The first error logged on this thread since the last clear, else the last warning, as one line;
 * "no reason given" if there is none. */
const char *quire__ggml_log_last(void);

#endif
