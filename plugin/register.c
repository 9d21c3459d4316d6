/* register.c: the one function that a host calls, ggml_backend_init.
 *
 * Where the plug-in cannot be what the host expects, it steps aside: one line on stderr, and the
 * host goes on without it.
 */
#include <stdio.h>
#include <string.h>

#include "backend.h"
#include "cache_ops.h"
#include "device.h"
#include "settings.h"
#include "usage.h"

static const char *get_name(ggml_backend_reg_t registry) {
    (void)registry;
    return "QUIRE";
}

static size_t get_device_count(ggml_backend_reg_t registry) {
    (void)registry;
    return 1;
}

static ggml_backend_dev_t get_device(ggml_backend_reg_t registry, size_t index) {
    (void)registry;
    return index == 0 ? &quire_device : NULL;
}

/* --split-mode row fails to load a model on a device without this function. NULL: no split. */
static ggml_backend_buffer_type_t split_buffer_type(int main_device, const float *tensor_split) {
    (void)main_device;
    (void)tensor_split;
    return NULL;
}

static void *get_proc_address(ggml_backend_reg_t registry, const char *name) {
    (void)registry;
    static const struct {
        const char *name;
        void (*function)(void);
    } known[] = {
        {"ggml_backend_set_n_threads", (void (*)(void))backend_set_n_threads},
        {"ggml_backend_set_abort_callback", (void (*)(void))backend_set_abort},
        {"ggml_backend_split_buffer_type", (void (*)(void))split_buffer_type},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i].name) == 0) {
            void *address;
            memcpy(&address, &known[i].function, sizeof address);
            return address;
        }
    return NULL;
}

static struct ggml_backend_reg quire_registry = {
    .api_version = GGML_BACKEND_API_VERSION,
    .iface = {.get_name = get_name,
              .get_device_count = get_device_count,
              .get_device = get_device,
              .get_proc_address = get_proc_address},
};

__attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void);

ggml_backend_reg_t ggml_backend_init(void) {
    char why[256];
    if (quire_device.reg)
        return &quire_registry; /* loaded a second time */
    if (!host_ggml_find(__builtin_return_address(0), why, sizeof why) ||
        !settings_read(why, sizeof why)) {
        fprintf(stderr, "quire: %s; going on without Quire\n", why);
        return NULL;
    }
    if (!cache_ops_init()) {
        fprintf(stderr, "quire: ggml's custom operations are unknown; going on without Quire\n");
        return NULL;
    }
    quire_device.reg = &quire_registry;
    if (settings.stats)
        usage_report_at_exit();
    return &quire_registry;
}
