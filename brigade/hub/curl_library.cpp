#include "brigade/hub/curl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

#include "brigade/base/error.h"

namespace brigade {
namespace {

constexpr const char* kLibrary = "libcurl.so.4";

[[noreturn]] void refuse_curl(const char* reason) {
  throw Error(
      ExitCode::kUnexpected,
      fmt::format(
          "[hub] cannot load {}, which downloads need ({}): install the "
          "package libcurl4 (Debian, Ubuntu) or libcurl (Fedora, SUSE)",
          kLibrary,
          reason));
}

template <class Function>
void find_curl(void* library, const char* name, Function& function) {
  void* const address = ::dlsym(library, name);
  if (address == nullptr)
    refuse_curl(::dlerror());
  function = reinterpret_cast<Function>(address);
}

CurlLibrary load_curl() {
  int mode = RTLD_NOW | RTLD_LOCAL;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // It and its OpenSSL belong together; a wheel's program has one of its own.
  mode |= RTLD_DEEPBIND;  // sanitizers refuse it
#endif
  void* const library = ::dlopen(kLibrary, mode);
  if (library == nullptr)
    refuse_curl(::dlerror());
  CurlLibrary curl{};
  find_curl(library, "curl_easy_cleanup", curl.easy_cleanup);
  find_curl(library, "curl_easy_getinfo", curl.easy_getinfo);
  find_curl(library, "curl_easy_init", curl.easy_init);
  find_curl(library, "curl_easy_perform", curl.easy_perform);
  find_curl(library, "curl_easy_reset", curl.easy_reset);
  find_curl(library, "curl_easy_setopt", curl.easy_setopt);
  find_curl(library, "curl_easy_strerror", curl.easy_strerror);
  find_curl(library, "curl_free", curl.free);
  find_curl(library, "curl_url", curl.url);
  find_curl(library, "curl_url_cleanup", curl.url_cleanup);
  find_curl(library, "curl_url_get", curl.url_get);
  find_curl(library, "curl_url_set", curl.url_set);
  decltype(&::curl_global_init_mem) global_init{};
  find_curl(library, "curl_global_init_mem", global_init);
  // The program's, which may be preloaded (jemalloc): bound deeply, libcurl
  // would free by libc what libc's strdup() has from there.
  if (global_init(
          CURL_GLOBAL_DEFAULT,
          std::malloc,
          std::free,
          std::realloc,
          ::strdup,
          std::calloc) != CURLE_OK)
    refuse_curl("it does not start");
  return curl;
}

}  // namespace

const CurlLibrary& curl_library() {
  static const CurlLibrary library = load_curl();
  return library;
}

}  // namespace brigade
