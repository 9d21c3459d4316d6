/* host_ggml.c: finding the host's ggml, and the load guard. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "host_ggml.h"

struct host_ggml host;

/* POSIX's way from an object pointer to a function pointer, which ISO C does not have. */
static bool set_function(void *field, void *symbol) {
    memcpy(field, &symbol, sizeof symbol);
    return symbol != NULL;
}

/* The library that `caller` is code of, and with it what that library was linked with. */
static void *library_of(const void *caller) {
    Dl_info info;
    void *library = NULL;
    if (dladdr(caller, &info) && info.dli_fname)
        library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    return library ? library : dlopen(NULL, RTLD_LAZY); /* the program itself */
}

static const char *find_functions(void *library) {
#define FIND(name)                                                                                 \
    if (!set_function(&host.name, dlsym(library, #name)))                                          \
        return #name;
    HOST_GGML_FUNCTIONS(FIND)
#undef FIND
    return NULL;
}

static const char *find_cpu_functions(ggml_backend_reg_t registry) {
#define FIND(field, type, name)                                                                    \
    if (!set_function(&host.field, host.ggml_backend_reg_get_proc_address(registry, name)))        \
        return name;
    HOST_CPU_FUNCTIONS(FIND)
#undef FIND
    return NULL;
}

/* Operations that the plug-in tells apart by number. */
static bool operations_agree(void) {
    static const struct {
        enum ggml_op op;
        const char *name;
    } known[] = {{GGML_OP_NONE, "NONE"},           {GGML_OP_RESHAPE, "RESHAPE"},
                 {GGML_OP_VIEW, "VIEW"},           {GGML_OP_PERMUTE, "PERMUTE"},
                 {GGML_OP_TRANSPOSE, "TRANSPOSE"}, {GGML_OP_SET_ROWS, "SET_ROWS"},
                 {GGML_OP_ROPE, "ROPE"},           {GGML_OP_FLASH_ATTN_EXT, "FLASH_ATTN_EXT"},
                 {GGML_OP_CUSTOM, "CUSTOM"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(host.ggml_op_name(known[i].op), known[i].name) != 0)
            return false;
    return true;
}

bool host_ggml_find(const void *caller, char *why, size_t why_bytes) {
    const char *missing = find_functions(library_of(caller));
    if (missing) {
        snprintf(why, why_bytes, "the program does not export ggml's function %s", missing);
        return false;
    }
    if (strcmp(host.ggml_version(), QUIRE_GGML_VERSION) != 0) {
        snprintf(why, why_bytes, "built for ggml %s, and this program has %s", QUIRE_GGML_VERSION,
                 host.ggml_version());
        return false;
    }
    ggml_backend_reg_t registry = host.ggml_backend_reg_by_name("CPU");
    if (!registry) {
        snprintf(why, why_bytes, "ggml's CPU backend must be loaded first");
        return false;
    }
    if (registry->api_version != GGML_BACKEND_API_VERSION) {
        snprintf(why, why_bytes, "built for version %d of ggml's backends, and this program has %d",
                 GGML_BACKEND_API_VERSION, registry->api_version);
        return false;
    }
    if (!operations_agree()) {
        snprintf(why, why_bytes, "this program's ggml %s numbers its operations differently",
                 host.ggml_version());
        return false;
    }
    missing = find_cpu_functions(registry);
    if (missing) {
        snprintf(why, why_bytes, "ggml's CPU backend has no function %s", missing);
        return false;
    }
    host.cpu = host.ggml_backend_reg_dev_get(registry, 0);
    return true;
}
