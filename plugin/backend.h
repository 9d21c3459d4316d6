/* backend.h: computing graphs. Each context of llama.cpp has a backend of its own. */
#ifndef QUIRE_PLUGIN_BACKEND_H
#define QUIRE_PLUGIN_BACKEND_H

#include "host_ggml.h"

ggml_backend_t backend_create(ggml_backend_dev_t device, const char *params);

/* What llama.cpp looks up by name in the registry. */
void backend_set_n_threads(ggml_backend_t backend, int n_threads);
void backend_set_abort(ggml_backend_t backend, ggml_abort_callback callback, void *data);

#endif
