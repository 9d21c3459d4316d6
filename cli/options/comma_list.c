/* comma_list.c: splits lists at their commas. */
#include "options/comma_list.h"

#include "output/report.h"

#include <stdlib.h>
#include <string.h>

char **cli_list_split(const char *text, size_t *n) {
    *n = 1;
    for (const char *at = text; *at; at++)
        *n += *at == ',';
    size_t n_bytes = strlen(text) + 1;
    char **parts = malloc(*n * sizeof *parts + n_bytes);
    if (!parts) {
        cli_error("out of memory");
        return NULL;
    }
    char *part = memcpy(parts + *n, text, n_bytes);
    for (size_t i = 0; i < *n; i++) {
        parts[i] = part;
        part += strcspn(part, ",");
        *part++ = '\0';
    }
    return parts;
}
