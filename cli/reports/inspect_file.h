/* inspect_file.h: reports the contents of a saved cache, and whether it is damaged. */
#ifndef CLI_REPORTS_INSPECT_FILE_H
#define CLI_REPORTS_INSPECT_FILE_H

#include <stdbool.h>

/* Returns an exit status: CLI_FAILURE if the file is damaged. */
int cli_inspect_file(const char *path, bool json);

#endif
