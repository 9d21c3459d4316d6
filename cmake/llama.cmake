# ggml and libllama for the engine: the target `llama`, from the first of
#   -DQUIRE_LLAMA_SOURCE=DIR   a llama.cpp tree, built by tools/build-llama into the cache
#   find_package(llama)        an installed one, or -Dllama_DIR, if the engine compiles with it (llama_check/);
#                              -DQUIRE_LLAMA_INSTALLED=OFF does not look for one
#   the pinned sources         fetched and built by tools/build-llama into the cache
# What is built is for this machine's processor, unless -DQUIRE_LLAMA_MARCH says for which.
set(QUIRE_LLAMA_SOURCE "" CACHE PATH "A llama.cpp tree to build the engine on; empty: an installed one, or the pinned one")
option(QUIRE_LLAMA_INSTALLED "Take an installed llama.cpp where there is one" ON)
set(QUIRE_LLAMA_MARCH "" CACHE STRING
    "The processors that a llama.cpp built here is for, as the compiler's -march has it (x86-64-v3); empty: this machine's")

enable_language(CXX) # libllama is C++: what links it needs that language's libraries

# What an earlier run of CMake found, if it lies under `prefix`; find_package would take it again without looking.
function(quire_forget_llama prefix)
    foreach(name llama_DIR ggml_DIR llama_LIBRARY GGML_LIBRARY GGML_BASE_LIBRARY GGML_CPU_LIBRARY)
        string(FIND "${${name}}" "${prefix}" at)
        if(at EQUAL 0)
            unset(${name} CACHE)
        endif()
    endforeach()
endfunction()

if(QUIRE_LLAMA_BUILT) # by us, for other options perhaps
    quire_forget_llama(${QUIRE_LLAMA_BUILT})
    unset(QUIRE_LLAMA_BUILT CACHE)
endif()
if(QUIRE_LLAMA_INSTALLED AND NOT QUIRE_LLAMA_SOURCE)
    add_subdirectory(${CMAKE_CURRENT_LIST_DIR}/llama_check ${CMAKE_BINARY_DIR}/llama_check)
    if(llama_usable)
        find_package(llama CONFIG QUIET)
    elseif(llama_fault)
        message(WARNING "${llama_fault}. The pinned one is taken instead; -DQUIRE_LLAMA_INSTALLED=OFF silences this.")
        quire_forget_llama("")
    endif()
endif()
if(NOT TARGET llama)
    set(arguments)
    if(QUIRE_LLAMA_MARCH)
        list(APPEND arguments --for ${QUIRE_LLAMA_MARCH})
    endif()
    if(QUIRE_LLAMA_SOURCE)
        list(APPEND arguments ${QUIRE_LLAMA_SOURCE})
    endif()
    # A compiler may be two words, of which CMake takes the second for an argument: "ccache gcc".
    string(STRIP "${CMAKE_C_COMPILER} ${CMAKE_C_COMPILER_ARG1}" cc)
    string(STRIP "${CMAKE_CXX_COMPILER} ${CMAKE_CXX_COMPILER_ARG1}" cxx)
    execute_process(COMMAND ${CMAKE_COMMAND} -E env "CC=${cc}" "CXX=${cxx}"
                            ${CMAKE_CURRENT_LIST_DIR}/../tools/build-llama ${arguments}
                    OUTPUT_VARIABLE prefix OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
    if(failed)
        message(FATAL_ERROR "ggml and libllama could not be built; -DQUIRE_ENGINE=OFF leaves the engine out")
    endif()
    quire_forget_llama("")
    set(QUIRE_LLAMA_BUILT ${prefix} CACHE INTERNAL "Where the llama.cpp built for the engine is")
    set(prefix_path ${CMAKE_PREFIX_PATH})
    set(CMAKE_PREFIX_PATH ${prefix}) # llama's package looks for its libraries there before it looks beside itself
    find_package(llama CONFIG REQUIRED PATHS ${prefix} NO_DEFAULT_PATH)
    set(CMAKE_PREFIX_PATH ${prefix_path})
endif()
if(NOT TARGET ggml::ggml-cpu)
    message(FATAL_ERROR "The llama.cpp in ${LLAMA_LIB_DIR} loads its CPU backend at run time, and the engine links it: "
                        "pass -DQUIRE_LLAMA_INSTALLED=OFF for the pinned one, or -DQUIRE_LLAMA_SOURCE=DIR")
endif()
# The package does not say that it is C++; programs in C that link it need to know.
target_link_libraries(llama INTERFACE ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
message(STATUS "libllama: ${LLAMA_LIB_DIR}")
