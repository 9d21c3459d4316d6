/* args_value.c: parses option values, and describes the allowed ones. */
#include "options/args.h"

#include "byte_count.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* strtoll and strtod skip leading blanks, but such a value is probably a quoting mistake. */
static bool starts_with_blank(const char *text) { return isspace((unsigned char)*text) != 0; }

static bool within(const cli_option *option, double value) {
    return value >= option->min && value <= option->max;
}

static bool allowed_int(const cli_option *option, int64_t value) {
    return within(option, (double)value) && (option->step <= 1 || value % option->step == 0);
}

static bool assign_int(const cli_option *option, const char *text) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (starts_with_blank(text) || end == text || *end || errno)
        return false;
    if (!allowed_int(option, value))
        return false;
    *(int32_t *)option->target = (int32_t)value;
    return true;
}

static bool assign_float(const cli_option *option, const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (starts_with_blank(text) || end == text || *end || !isfinite(value) ||
        !within(option, value))
        return false;
    *(double *)option->target = value;
    return true;
}

static bool assign_size(const cli_option *option, const char *text) {
    size_t bytes;
    if (!quire__byte_count_parse(text, &bytes) || !within(option, (double)bytes))
        return false;
    *(size_t *)option->target = bytes;
    return true;
}

static bool assign_choice(const cli_option *option, const char *text) {
    for (int32_t i = 0; option->choices[i]; i++) {
        if (strcmp(option->choices[i], text) == 0) {
            *(int32_t *)option->target = i;
            return true;
        }
    }
    return false;
}

bool cli_option_assign(const cli_option *option, const char *text) {
    switch (option->kind) {
    case CLI_FLAG:
        *(bool *)option->target = true;
        return true;
    case CLI_INT:
        return assign_int(option, text);
    case CLI_FLOAT:
        return assign_float(option, text);
    case CLI_SIZE:
        return assign_size(option, text);
    case CLI_STRING:
        if (!*text)
            return false;
        *(const char **)option->target = text;
        return true;
    case CLI_CHOICE:
        return assign_choice(option, text);
    }
    return false;
}

/* The largest suffix that keeps the number whole, so that the text can be typed as a value. */
static void format_size(double bytes, char *text, size_t n_bytes) {
    static const char *const suffixes[] = {"", "K", "M", "G", "T"};
    size_t power = 0;
    while (power < 4 && bytes >= 1024 && fmod(bytes, 1024) == 0) {
        bytes /= 1024;
        power++;
    }
    snprintf(text, n_bytes, "%.0f%s", bytes, suffixes[power]);
}

static void join_choices(const char *const *choices, char *text, size_t n_bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; choices[i] && used < n_bytes; i++) {
        int n = snprintf(text + used, n_bytes - used, "%s%s", i ? ", " : "", choices[i]);
        if (n < 0)
            break;
        used += (size_t)n;
    }
}

void cli_option_allowed(const cli_option *option, char *text, size_t n_bytes) {
    char low[32], high[32];
    switch (option->kind) {
    case CLI_INT:
        if (option->step > 1) {
            snprintf(text, n_bytes, "%.0f to %.0f in steps of %d", option->min, option->max,
                     (int)option->step);
        } else {
            snprintf(text, n_bytes, "a whole number from %.0f to %.0f", option->min, option->max);
        }
        break;
    case CLI_FLOAT:
        snprintf(text, n_bytes, "a number from %g to %g", option->min, option->max);
        break;
    case CLI_SIZE:
        format_size(option->min, low, sizeof low);
        format_size(option->max, high, sizeof high);
        snprintf(text, n_bytes, "a size from %s to %s, in bytes or with " QUIRE_BYTE_UNITS, low,
                 high);
        break;
    case CLI_CHOICE:
        join_choices(option->choices, text, n_bytes);
        break;
    case CLI_STRING:
        snprintf(text, n_bytes, "%s", option->value);
        break;
    case CLI_FLAG:
        snprintf(text, n_bytes, "no value");
        break;
    }
}

bool cli_option_default(const cli_option *option, char *text, size_t n_bytes) {
    switch (option->kind) {
    case CLI_FLAG:
        return false;
    case CLI_INT: {
        int32_t value = *(const int32_t *)option->target;
        snprintf(text, n_bytes, "%d", (int)value);
        return within(option, value);
    }
    case CLI_FLOAT: {
        double value = *(const double *)option->target;
        snprintf(text, n_bytes, "%g", value);
        return within(option, value);
    }
    case CLI_SIZE: {
        size_t value = *(const size_t *)option->target;
        format_size((double)value, text, n_bytes);
        return within(option, (double)value);
    }
    case CLI_STRING: {
        const char *value = *(const char *const *)option->target;
        if (value)
            snprintf(text, n_bytes, "%s", value);
        return value != NULL;
    }
    case CLI_CHOICE:
        snprintf(text, n_bytes, "%s", option->choices[*(const int32_t *)option->target]);
        return true;
    }
    return false;
}
