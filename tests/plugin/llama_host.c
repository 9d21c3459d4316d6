/* llama_host.c: loading the plug-in into a program on libllama. */
#include "llama_host.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char graph_splits[64];

void require(bool good, const char *format, ...) {
    if (good)
        return;
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static void log_line(enum ggml_log_level level, const char *text, void *data) {
    (void)data;
    const char *splits = strstr(text, "splits = ");
    if (splits) {
        splits += strlen("splits = ");
        snprintf(graph_splits, sizeof graph_splits, "%.*s", (int)strcspn(splits, ","), splits);
    }
    if (level >= GGML_LOG_LEVEL_WARN || getenv("QUIRE_TEST_VERBOSE"))
        fputs(text, stderr);
}

void host_log_quietly(void) { llama_log_set(log_line, NULL); }

ggml_backend_dev_t host_load(void) {
    const char *path = getenv("GGML_BACKEND_PATH");
    require(path != NULL, "GGML_BACKEND_PATH does not name the plug-in");
    host_log_quietly();
    ggml_backend_load_all();
    ggml_backend_dev_t device = ggml_backend_dev_by_name("QUIRE0");
    require(device != NULL, "%s brought no device QUIRE0", path);
    return device;
}

struct llama_model *host_model(const char *path, ggml_backend_dev_t device, int layers) {
    struct llama_model_params params = llama_model_default_params();
    ggml_backend_dev_t devices[2] = {device, NULL};
    params.devices = devices;
    params.n_gpu_layers = layers;
    struct llama_model *model = llama_model_load_from_file(path, params);
    require(model != NULL, "%s cannot be loaded", path);
    return model;
}

const char *host_graph_splits(void) { return graph_splits; }
