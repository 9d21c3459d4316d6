/* settings.c: QUIRE_KV, QUIRE_KV_BYTES, QUIRE_CALIBRATION, QUIRE_STATS. */
#include <ctype.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layer_calibration.h"
#include "settings.h"

struct settings settings;

static const char *variable(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

/* A number of bytes, with K, M or G in either case behind it for powers of 1024. */
static bool parse_bytes(const char *text, size_t *bytes) {
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (end == text || errno || *text == '-')
        return false;
    static const char units[] = "KMG";
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    if ((*end && !unit) || (unit && end[1]) || number > SIZE_MAX >> shift)
        return false;
    *bytes = (size_t)number << shift;
    return true;
}

bool settings_read(char *why, size_t why_bytes) {
    const char *bytes = variable("QUIRE_KV_BYTES", "0");
    settings.kv = variable("QUIRE_KV", strcmp(bytes, "0") == 0 ? "k8v8" : "auto");
    settings.off = strcmp(settings.kv, "off") == 0;
    settings.automatic = strcmp(settings.kv, "auto") == 0;
    settings.stats = strcmp(variable("QUIRE_STATS", "0"), "0") != 0;
    if (!parse_bytes(bytes, &settings.kv_bytes)) {
        snprintf(why, why_bytes, "QUIRE_KV_BYTES=%s is not a number of bytes, such as 512M", bytes);
        return false;
    }
    if (settings.automatic && settings.kv_bytes == 0) {
        snprintf(why, why_bytes,
                 "QUIRE_KV=auto needs QUIRE_KV_BYTES, the bytes that pages may take");
        return false;
    }
    if (!settings.off && !settings.automatic &&
        quire_policy_parse(settings.kv, &settings.policy) != QUIRE_OK) {
        snprintf(why, why_bytes, "QUIRE_KV=%s: %s", settings.kv, quire_last_error());
        return false;
    }
    const char *calibration = variable("QUIRE_CALIBRATION", NULL);
    return !calibration || settings.off || calibration_read(calibration, why, why_bytes);
}
