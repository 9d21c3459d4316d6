/* ggml_log.c: keeps ggml and libllama from printing. */
#include "model/ggml_log.h"

#include <llama.h>
#include <stdbool.h>
#include <string.h>

static _Thread_local char last[256];
static _Thread_local bool is_error;

static void remember(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (is_error || (level != GGML_LOG_LEVEL_ERROR && level != GGML_LOG_LEVEL_WARN))
        return; /* the first error has the reason; later ones only follow from it */
    size_t n = strcspn(text, "\n");
    if (n == 0)
        return;
    if (n >= sizeof last)
        n = sizeof last - 1;
    memcpy(last, text, n);
    last[n] = '\0';
    is_error = level == GGML_LOG_LEVEL_ERROR;
}

void quire__ggml_log_install(void) { llama_log_set(remember, NULL); /* ggml's too */ }

void quire__ggml_log_clear(void) {
    last[0] = '\0';
    is_error = false;
}

const char *quire__ggml_log_last(void) { return last[0] ? last : "no reason given"; }
