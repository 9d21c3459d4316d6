/* llama_host.h: a program on libllama that loads the plug-in, as any other would. */
#ifndef QUIRE_TESTS_LLAMA_HOST_H
#define QUIRE_TESTS_LLAMA_HOST_H

#include <llama.h>
#include <stdbool.h>

/* Prints a sentence and exits with 1 unless `good`. */
void require(bool good, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Loads the plug-in that GGML_BACKEND_PATH names, and returns its device. */
ggml_backend_dev_t host_load(void);

/* The model with its last `layers` on `device` (NULL: the CPU), and the others on the CPU. */
struct llama_model *host_model(const char *path, ggml_backend_dev_t device, int layers);

/* Pieces that ggml's scheduler cut the graphs of the context created last into, as libllama logs
 * them: "1", or "1 / 3" if prefill and decoding differ. */
const char *host_graph_splits(void);

/* Everything libllama logs, on stderr: for looking at a failure (QUIRE_TEST_VERBOSE=1). */
void host_log_quietly(void);

#endif
