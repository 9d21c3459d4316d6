/* host_ggml.h: the ggml of the program that loaded the plug-in.
 *
 * The plug-in links no ggml: a second copy in the process would have a registry of its own. Nor
 * does it leave ggml's names to the linker, which finds them only where the host exports them to
 * everyone; a Python process, for example, does not. It asks the very library that loaded it.
 */
#ifndef QUIRE_PLUGIN_HOST_GGML_H
#define QUIRE_PLUGIN_HOST_GGML_H

#include <stdbool.h>
#include <stddef.h>

#include <ggml.h>
#include <ggml-backend.h>
#include <ggml-backend-impl.h>
#include <ggml-cpu.h>
#include <ggml-impl.h> /* struct ggml_cgraph */

#define HOST_GGML_FUNCTIONS(X)                                                                     \
    X(ggml_backend_buffer_init)                                                                    \
    X(ggml_backend_buffer_is_host)                                                                 \
    X(ggml_backend_dev_init)                                                                       \
    X(ggml_backend_dev_memory)                                                                     \
    X(ggml_backend_dev_supports_buft)                                                              \
    X(ggml_backend_dev_supports_op)                                                                \
    X(ggml_backend_free)                                                                           \
    X(ggml_backend_graph_compute)                                                                  \
    X(ggml_backend_reg_by_name)                                                                    \
    X(ggml_backend_reg_dev_get)                                                                    \
    X(ggml_backend_reg_get_proc_address)                                                           \
    X(ggml_custom_4d)                                                                              \
    X(ggml_free)                                                                                   \
    X(ggml_init)                                                                                   \
    X(ggml_nbytes)                                                                                 \
    X(ggml_op_name)                                                                                \
    X(ggml_tensor_overhead)                                                                        \
    X(ggml_threadpool_params_default)                                                              \
    X(ggml_type_name)                                                                              \
    X(ggml_version)

/* Of the CPU backend, which may be a library of its own: asked from its registry. */
#define HOST_CPU_FUNCTIONS(X)                                                                      \
    X(set_n_threads, ggml_backend_cpu_set_n_threads, "ggml_backend_set_n_threads")                 \
    X(set_threadpool, ggml_backend_cpu_set_threadpool, "ggml_backend_cpu_set_threadpool")          \
    X(set_abort, ggml_backend_cpu_set_abort_callback, "ggml_backend_set_abort_callback")           \
    X(pool_new, ggml_threadpool_new, "ggml_threadpool_new")                                        \
    X(pool_free, ggml_threadpool_free, "ggml_threadpool_free")

struct host_ggml {
#define FIELD(name) __typeof__(name) *name;
    HOST_GGML_FUNCTIONS(FIELD)
#undef FIELD
#define FIELD(field, type, name) __typeof__(type) *field;
    HOST_CPU_FUNCTIONS(FIELD)
#undef FIELD
    ggml_backend_dev_t cpu;
};

extern struct host_ggml host; /* filled once, when the plug-in is loaded; read-only afterwards */

/* Looks up all of the above, starting from `caller`, a code address of the host's ggml, and checks
 * that this ggml is the one that the plug-in was built for. False: `why` is a sentence. */
bool host_ggml_find(const void *caller, char *why, size_t why_bytes);

#endif
