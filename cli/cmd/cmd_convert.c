/* cmd_convert.c: quire convert. Converts saved caches to prompt caches of mlx-lm, and back. */
#include "command.h"
#include "mlx/mlx_cache.h"
#include "options/args.h"
#include "output/output.h"
#include "output/report.h"

#include <stdio.h>
#include <string.h>

static const char *const layout_names[] = {"auto", "meta_state", "scalars", NULL};

/* A saved cache begins with its magic number; everything else is tried as safetensors. */
static bool is_saved_cache(const char *path) {
    char start[6] = {0};
    FILE *file = fopen(path, "rb");
    const size_t n = file ? fread(start, 1, sizeof start, file) : 0;
    if (file)
        fclose(file);
    return n == sizeof start && memcmp(start + 1, "QUIRE", 5) == 0;
}

int cli_convert_run(int argc, char **argv) {
    const char *from = NULL, *to = NULL;
    cli_mlx_options chosen = {0};
    const cli_argument arguments[] = {{"FROM", &from, true}, {"TO", &to, true}};
    const cli_option options[] = {
        cli_string("kv", &chosen.kv, "NAME",
                   "to mlx-lm: codecs for layers whose own codecs mlx-lm does not have: mlx8, "
                   "mlx4, a8:a4 or none"),
        cli_choice("layout", &chosen.layout, layout_names,
                   "to mlx-lm: file layout: meta_state (mlx-lm before 0.32), scalars (0.32 and "
                   "later), or auto: scalars if possible"),
    };
    static const char *const examples[] = {
        "quire convert prompt.safetensors prompt.quire",
        "quire convert book.quire book.safetensors --kv mlx8",
        NULL,
    };
    const cli_usage usage = {.command = "convert",
                             .about =
                                 "Converts a prompt cache of mlx-lm (KVCache, RotatingKVCache "
                                 "and their quantized variants) to a saved cache, or a saved "
                                 "cache to one of mlx-lm; the type of FROM decides. Codes of "
                                 "a8, a4 and a2 are copied unchanged.\n"
                                 "A cache from mlx-lm is marked as such, and 'quire run "
                                 "--load' rejects it: a GGUF model has other weights, and some "
                                 "have the channels of K in another order. Such a file is for "
                                 "programs that use the library.",
                             .options = options,
                             .n_options = sizeof options / sizeof options[0],
                             .arguments = arguments,
                             .n_arguments = 2,
                             .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
    status = cli_output_check(to);
    if (status != CLI_OK)
        return status;
    return is_saved_cache(from) ? cli_mlx_from_quire(from, to, &chosen)
                                : cli_mlx_to_quire(from, to);
}
