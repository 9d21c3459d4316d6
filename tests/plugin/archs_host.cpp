// archs_host.cpp: what llama.cpp's own test-llama-archs lacks as a host of the plug-in. It never loads backends; it ends without
// waiting for the thread that writes its report; and it asks for four threads, which wait for each other without sleeping: on
// fewer processors each wait costs a time slice.
#include <llama.h>

#include "log.h"

extern "C" struct llama_context *__real_llama_init_from_model(struct llama_model *, struct llama_context_params);
extern "C" struct llama_context *__wrap_llama_init_from_model(struct llama_model *, struct llama_context_params);

static struct host {
    host() { ggml_backend_load_all(); }
    ~host() { common_log_pause(common_log_main()); }
} host;

struct llama_context *__wrap_llama_init_from_model(struct llama_model *model, struct llama_context_params params) {
    params.n_threads = params.n_threads_batch = 1;
    return __real_llama_init_from_model(model, params);
}
