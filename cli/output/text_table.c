/* text_table.c: collects cells, then prints them in columns as wide as necessary. */
#include "output/text_table.h"

#include "command.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void cli_table_start(cli_table *table, const cli_column *columns, size_t n_columns) {
    *table = (cli_table){.columns = columns, .n_columns = n_columns};
}

static bool make_room(cli_table *table) {
    if (table->n_cells < table->capacity)
        return true;
    size_t capacity = table->capacity ? 2 * table->capacity : 64;
    char **cells = realloc(table->cells, capacity * sizeof *cells);
    if (!cells)
        return false;
    table->cells = cells;
    table->capacity = capacity;
    return true;
}

void cli_table_cell(cli_table *table, const char *format, ...) {
    if (table->failed)
        return;
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    char *cell = n >= 0 && make_room(table) ? malloc((size_t)n + 1) : NULL;
    if (cell) {
        vsnprintf(cell, (size_t)n + 1, format, again);
        table->cells[table->n_cells++] = cell;
    } else {
        table->failed = true;
    }
    va_end(again);
    va_end(args);
}

static int column_width(const cli_table *table, size_t column) {
    size_t width = strlen(table->columns[column].title);
    for (size_t i = column; i < table->n_cells; i += table->n_columns) {
        size_t n = strlen(table->cells[i]);
        if (n > width)
            width = n;
    }
    return (int)width;
}

static void print_cell(const cli_table *table, size_t column, const char *text, int width,
                       FILE *file) {
    bool last = column + 1 == table->n_columns;
    if (table->columns[column].right) {
        fprintf(file, "%*s", width, text);
    } else {
        fprintf(file, "%-*s", last ? 0 : width, text); /* no trailing blanks */
    }
    fputs(last ? "\n" : "  ", file);
}

static void free_cells(cli_table *table) {
    for (size_t i = 0; i < table->n_cells; i++)
        free(table->cells[i]);
    free(table->cells);
    table->cells = NULL;
    table->n_cells = table->capacity = 0;
}

int cli_table_print(cli_table *table, FILE *file) {
    int *widths = table->failed ? NULL : malloc(table->n_columns * sizeof *widths);
    if (!widths) {
        free_cells(table);
        cli_error("out of memory while printing a table");
        return CLI_FAILURE;
    }
    for (size_t c = 0; c < table->n_columns; c++) {
        widths[c] = column_width(table, c);
        print_cell(table, c, table->columns[c].title, widths[c], file);
    }
    for (size_t i = 0; i < table->n_cells; i++) {
        size_t c = i % table->n_columns;
        print_cell(table, c, table->cells[i], widths[c], file);
    }
    free(widths);
    free_cells(table);
    return CLI_OK;
}

cli_text cli_bytes(uint64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    cli_text result;
    if (bytes < 1024) {
        snprintf(result.text, sizeof result.text, "%d B", (int)bytes);
        return result;
    }
    double value = (double)bytes;
    size_t unit = 0;
    /* 1023.95 would print as 1024.0 */
    while (value >= 1023.95 && unit < 6) {
        value /= 1024;
        unit++;
    }
    snprintf(result.text, sizeof result.text, "%.1f %s", value, units[unit]);
    return result;
}

cli_text cli_bits(double bits) {
    cli_text result = {"-"};
    if (bits >= 0)
        snprintf(result.text, sizeof result.text, "%.3f", bits);
    return result;
}

cli_text cli_rel_error(double error) {
    cli_text result = {"-"};
    if (!isnan(error))
        snprintf(result.text, sizeof result.text, "%.2e", error);
    return result;
}

cli_text cli_half(double half, int n_digits) {
    cli_text result = {"-"};
    if (!isnan(half))
        snprintf(result.text, sizeof result.text, "%.*f", n_digits, half);
    return result;
}
