// An NVRTC that compiles nothing: a "cubin" is the flags and the source, one after another. A source
// with the word REFUSED fails, and an empty one makes no cubin.
#include <cstddef>
#include <cstring>
#include <string>

namespace {
struct Program {
    std::string source, name, log, cubin;
};
}  // namespace

extern "C" {

const char* nvrtcGetErrorString(int code) {
    return code == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_INVALID_INPUT";
}
int nvrtcCreateProgram(Program** program, const char* source, const char* name, int headers,
                       const char* const*, const char* const*) {
    if (headers) return 3;
    *program = new Program{source, name, "", ""};
    return 0;
}
int nvrtcDestroyProgram(Program** program) {
    delete *program;
    *program = nullptr;
    return 0;
}
int nvrtcCompileProgram(Program* program, int count, const char* const* flags) {
    if (program->source.find("REFUSED") != std::string::npos) {
        program->log = "1 line of noise\n" + program->name + "(1): error: REFUSED is undefined\n";
        return 6;
    }
    if (program->source.empty()) return 0;
    for (int i = 0; i < count; ++i) program->cubin += std::string(flags[i]) + "\n";
    program->cubin += program->source;
    return 0;
}
int nvrtcGetProgramLogSize(Program* program, size_t* size) {
    *size = program->log.size() + 1;
    return 0;
}
int nvrtcGetProgramLog(Program* program, char* to) {
    std::memcpy(to, program->log.c_str(), program->log.size() + 1);
    return 0;
}
int nvrtcGetCUBINSize(Program* program, size_t* size) {
    if (program->cubin.empty()) return 3;
    *size = program->cubin.size();
    return 0;
}
int nvrtcGetCUBIN(Program* program, char* to) {
    std::memcpy(to, program->cubin.data(), program->cubin.size());
    return 0;
}

}  // extern "C"
