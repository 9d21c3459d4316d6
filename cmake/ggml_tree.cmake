# QUIRE_GGML_TREE: the ggml sources whose headers the plug-in (plugin/) is built with, from the first of
#   -DQUIRE_GGML=DIR           a tree of llama.cpp or of ggml
#   -DQUIRE_LLAMA_SOURCE=DIR   the tree that the engine is built on
#   the pinned sources         in the cache; fetched there if QUIRE_PLUGIN is ON
# Empty if there is none. Installed headers are not enough: a backend needs ggml-backend-impl.h.
set(QUIRE_GGML "" CACHE PATH "A llama.cpp or ggml tree to build the plug-in for; empty: the engine's")

set(QUIRE_GGML_TREE "")
set(tree ${QUIRE_GGML})
if(NOT tree)
    set(tree ${QUIRE_LLAMA_SOURCE})
endif()
if(NOT tree)
    if(QUIRE_PLUGIN STREQUAL AUTO) # what tools/fetch-llama has unpacked for the engine
        if(NOT "$ENV{QUIRE_CACHE}" STREQUAL "")
            set(tree $ENV{QUIRE_CACHE}/llama.cpp)
        elseif(NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
            set(tree $ENV{XDG_CACHE_HOME}/quire/llama.cpp)
        else()
            set(tree $ENV{HOME}/.cache/quire/llama.cpp)
        endif()
    else()
        execute_process(COMMAND ${CMAKE_CURRENT_LIST_DIR}/../tools/fetch-llama
                        OUTPUT_VARIABLE library OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
        cmake_path(GET library PARENT_PATH tree)
        string(APPEND tree /llama.cpp)
    endif()
endif()
foreach(candidate ${tree}/ggml ${tree})
    if(NOT QUIRE_GGML_TREE AND EXISTS ${candidate}/src/ggml-backend-impl.h)
        set(QUIRE_GGML_TREE ${candidate})
    endif()
endforeach()
if(NOT QUIRE_GGML_TREE AND (QUIRE_GGML OR NOT QUIRE_PLUGIN STREQUAL AUTO))
    message(FATAL_ERROR "${tree} has no ggml/src/ggml-backend-impl.h: -DQUIRE_GGML=DIR wants a tree of llama.cpp or ggml")
endif()
