// A CUDA driver without a device: it notes launches, and refuses what the real one refuses.
//
// An "image" is text: after the ELF magic a line for each kernel, with its name and the four numbers
// of its geometry. Handles are addresses of what is below; two devices have a context each.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace {

enum Error {
    kInvalidValue = 1, kNotInitialized = 3, kInvalidDevice = 101, kInvalidImage = 200,
    kInvalidContext = 201, kInvalidHandle = 400, kNotFound = 500,
};

struct Context { int device; };
struct Function {
    Context* context;
    std::string name;
    uint32_t geometry[4];
    int shared_allowed = 48 << 10;
};
struct Module {
    Context* context;
    std::map<std::string, std::unique_ptr<Function>> functions;
};

bool ready = false;
Context contexts[2] = {{0}, {1}};
std::vector<std::unique_ptr<Module>> modules;
thread_local std::vector<Context*> stack;
std::vector<std::string> launches;

Context* current() { return stack.empty() ? nullptr : stack.back(); }
bool is_context(void* it) { return it == &contexts[0] || it == &contexts[1]; }
Module* find(void* handle) {
    for (auto& module : modules)
        if (module.get() == handle) return module.get();
    return nullptr;
}
Function* find_function(void* handle) {
    for (auto& module : modules)
        for (auto& entry : module->functions)
            if (entry.second.get() == handle) return entry.second.get();
    return nullptr;
}

}  // namespace

extern "C" {

int cuInit(unsigned flags) {
    if (flags) return kInvalidValue;
    ready = true;
    return 0;
}
int cuDeviceGet(int* device, int ordinal) {
    if (!ready) return kNotInitialized;
    if (ordinal < 0 || ordinal > 1) return kInvalidDevice;
    *device = ordinal;
    return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
    if (device < 0 || device > 1) return kInvalidDevice;
    *context = &contexts[device];
    return 0;
}
int cuCtxGetCurrent(void** context) {
    *context = current();
    return 0;
}
int cuCtxPushCurrent_v2(void* context) {
    if (!is_context(context)) return kInvalidContext;
    stack.push_back(static_cast<Context*>(context));
    return 0;
}
int cuCtxPopCurrent_v2(void** context) {
    if (stack.empty()) return kInvalidContext;
    *context = stack.back();
    stack.pop_back();
    return 0;
}
int cuModuleLoadData(void** module, const char* image) {
    if (!current()) return kInvalidContext;
    if (std::memcmp(image, "\x7f" "ELF", 4)) return kInvalidImage;
    auto made = std::make_unique<Module>();
    made->context = current();
    std::istringstream text(image + 4);
    auto function = std::make_unique<Function>();
    while (text >> function->name) {
        for (uint32_t& number : function->geometry) text >> number;
        function->context = current();
        std::string name = function->name;
        made->functions[name] = std::move(function);
        function = std::make_unique<Function>();
    }
    *module = made.get();
    modules.push_back(std::move(made));
    return 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
    Module* from = find(module);
    if (!from) return kInvalidHandle;
    auto found = from->functions.find(name);
    if (found == from->functions.end()) return kNotFound;
    *function = found->second.get();
    return 0;
}
int cuModuleGetGlobal_v2(void** address, size_t* bytes, void* module, const char* name) {
    Module* from = find(module);
    if (!from) return kInvalidHandle;
    std::string kernel(name);
    kernel.resize(kernel.size() - std::min(kernel.size(), std::strlen("_geometry")));
    auto found = from->functions.find(kernel);
    if (found == from->functions.end()) return kNotFound;
    *address = found->second->geometry;
    *bytes = sizeof found->second->geometry;
    return 0;
}
int cuMemcpyDtoH_v2(void* to, void* from, size_t bytes) {
    if (!current()) return kInvalidContext;
    std::memcpy(to, from, bytes);
    return 0;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
    Function* it = find_function(function);
    if (!it) return kInvalidHandle;
    if (attribute != 8 || value > 227 << 10) return kInvalidValue;
    it->shared_allowed = value;
    return 0;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* function, int threads,
                                                size_t shared_bytes) {
    if (!current()) return kInvalidContext;
    if (!find_function(function)) return kInvalidHandle;
    int by_memory = shared_bytes ? int((227 << 10) / shared_bytes) : 32;
    *blocks = std::min(std::min(32, 2048 / threads), by_memory);
    return 0;
}
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads,
                   unsigned threads_y, unsigned threads_z, unsigned shared_bytes, void* stream,
                   void** parameters, void** extra) {
    if (!current()) return kInvalidContext;
    Function* it = find_function(function);
    if (!it || it->context != current()) return kInvalidHandle;
    if (!x || !y || !z || y > 65535 || z > 65535 || x > 0x7fffffff) return kInvalidValue;
    if (!threads || threads > 1024 || threads_y != 1 || threads_z != 1) return kInvalidValue;
    if (int(shared_bytes) > it->shared_allowed || !parameters || extra) return kInvalidValue;
    std::ostringstream note;
    note << it->name << ' ' << it->context->device << ' ' << x << ' ' << y << ' ' << z << ' '
         << threads << ' ' << shared_bytes << ' ' << reinterpret_cast<uintptr_t>(stream) << ' ';
    auto* argument = static_cast<const unsigned char*>(parameters[0]);
    char digits[3];
    for (uint32_t i = 0; i < it->geometry[3]; ++i) {
        std::snprintf(digits, sizeof digits, "%02x", argument[i]);
        note << digits;
    }
    launches.push_back(note.str());
    return 0;
}
int cuGetErrorName(int code, const char** text) {
    *text = code == kInvalidValue ? "CUDA_ERROR_INVALID_VALUE"
          : code == kInvalidImage ? "CUDA_ERROR_INVALID_IMAGE"
          : code == kNotFound     ? "CUDA_ERROR_NOT_FOUND"
          : code == kInvalidDevice ? "CUDA_ERROR_INVALID_DEVICE" : nullptr;
    return *text ? 0 : kInvalidValue;
}
int cuGetErrorString(int code, const char** text) {
    *text = code == kInvalidValue ? "invalid argument"
          : code == kNotFound     ? "named symbol not found" : nullptr;
    return *text ? 0 : kInvalidValue;
}

/// The launch that was noted first, which is forgotten; null if there is none.
const char* fake_launch() {
    static std::string text;
    if (launches.empty()) return nullptr;
    text = launches.front();
    launches.erase(launches.begin());
    return text.c_str();
}
/// How many contexts this thread has pushed.
int fake_depth() { return int(stack.size()); }

}  // extern "C"
