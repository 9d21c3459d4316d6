/* args_option.c: constructors of options, one per type of value. */
#include "options/args.h"

cli_option cli_flag(const char *name, bool *target, const char *help) {
    return (cli_option){.name = name, .kind = CLI_FLAG, .target = target, .help = help};
}

static cli_option number(const char *name, cli_kind kind, void *target, double min, double max,
                         const char *value, const char *help) {
    return (cli_option){.name = name,
                        .kind = kind,
                        .target = target,
                        .min = min,
                        .max = max,
                        .value = value,
                        .help = help};
}

cli_option cli_int(const char *name, int32_t *target, int32_t min, int32_t max, const char *help) {
    return number(name, CLI_INT, target, min, max, "N", help);
}

cli_option cli_float(const char *name, double *target, double min, double max, const char *help) {
    return number(name, CLI_FLOAT, target, min, max, "X", help);
}

cli_option cli_size(const char *name, size_t *target, double min, double max, const char *help) {
    return number(name, CLI_SIZE, target, min, max, "SIZE", help);
}

cli_option cli_string(const char *name, const char **target, const char *value, const char *help) {
    return (cli_option){
        .name = name, .kind = CLI_STRING, .target = (void *)target, .value = value, .help = help};
}

cli_option cli_choice(const char *name, int32_t *target, const char *const *choices,
                      const char *help) {
    return (cli_option){.name = name,
                        .kind = CLI_CHOICE,
                        .target = target,
                        .choices = choices,
                        .value = "NAME",
                        .help = help};
}

cli_option cli_with_letter(cli_option option, char letter) {
    option.letter = letter;
    return option;
}

cli_option cli_with_step(cli_option option, int32_t step) {
    option.step = step;
    return option;
}
