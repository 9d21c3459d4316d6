# Writes the files FILES into the C file OUT as bytes: srv_page_files[] of {name, bytes, n_bytes}, ended by a NULL name.
# usage: cmake -D "FILES=a;b" -D OUT=file.c -P embed.cmake
set(text "/* Made by cmake/embed.cmake. */\n#include \"page/page_files.h\"\n\n")
set(table "")
set(n 0)
foreach(file ${FILES})
    get_filename_component(name ${file} NAME)
    file(READ ${file} hex HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
    string(APPEND text "static const unsigned char file_${n}[] = {${bytes}0};\n")
    string(APPEND table "    {\"${name}\", file_${n}, sizeof file_${n} - 1},\n")
    math(EXPR n "${n} + 1")
endforeach()
file(WRITE ${OUT} "${text}\nconst srv_page_file srv_page_files[] = {\n${table}    {0, 0, 0}};\n")
