/* model_find.h: a model's file by path or by name. */
#ifndef CLI_OPTIONS_MODEL_FIND_H
#define CLI_OPTIONS_MODEL_FIND_H

/* A path is taken as it is; "smollm2" and "gemma3" are fetched into the cache. free() *path.
 * Exit status; what fails has printed why. */
int cli_model_find(const char *name, char **path);

#endif
