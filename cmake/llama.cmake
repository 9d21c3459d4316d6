# ggml and libllama for the engine: the target `llama`, from the first of
#   -DQUIRE_LLAMA_SOURCE=DIR   a llama.cpp tree, built by tools/build-llama into the cache
#   find_package(llama)        an installed one, or -Dllama_DIR
#   the pinned sources         fetched and built by tools/build-llama into the cache
set(QUIRE_LLAMA_SOURCE "" CACHE PATH "A llama.cpp tree to build the engine on; empty: an installed one, or the pinned one")

enable_language(CXX) # libllama is C++: what links it needs that language's libraries

if(NOT QUIRE_LLAMA_SOURCE)
    find_package(llama CONFIG QUIET)
endif()
if(NOT TARGET llama)
    set(arguments)
    if(QUIRE_LLAMA_SOURCE)
        set(arguments ${QUIRE_LLAMA_SOURCE})
    endif()
    execute_process(COMMAND ${CMAKE_COMMAND} -E env CC=${CMAKE_C_COMPILER} CXX=${CMAKE_CXX_COMPILER}
                            ${PROJECT_SOURCE_DIR}/tools/build-llama ${arguments}
                    OUTPUT_VARIABLE prefix OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
    if(failed)
        message(FATAL_ERROR "ggml and libllama could not be built; -DQUIRE_ENGINE=OFF leaves the engine out")
    endif()
    find_package(llama CONFIG REQUIRED PATHS ${prefix} NO_DEFAULT_PATH)
endif()
# The package does not say that it is C++; programs in C that link it need to know.
target_link_libraries(llama INTERFACE ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
message(STATUS "libllama: ${LLAMA_LIB_DIR}")
