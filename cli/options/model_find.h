/* model_find.h: finds a model's file by its path or name. */
#ifndef CLI_OPTIONS_MODEL_FIND_H
#define CLI_OPTIONS_MODEL_FIND_H

/* Names that tools/fetch-model knows, "smollm2" and "gemma3", are downloaded into the cache once;
 * everything else is a path. free() *path. Returns an exit status, after a message if it failed. */
int cli_model_find(const char *name, char **path);

#endif
