/* inspect_file.h: what a saved cache holds, and whether it is sound. */
#ifndef CLI_REPORTS_INSPECT_FILE_H
#define CLI_REPORTS_INSPECT_FILE_H

#include <stdbool.h>

int cli_inspect_file(const char *path, bool json); /* exit status: CLI_FAILURE if it is not sound */

#endif
