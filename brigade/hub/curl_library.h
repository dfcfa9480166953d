// libcurl, loaded when something is first downloaded: it brings 23 libraries
// along, which no other command has to load, and which a package of the program
// need not contain. Private to brigade/hub.
#pragma once

// The checks of types are macros of the functions' own names; and the options
// that 7.85 deprecates are those that every version knows.
#define CURL_DISABLE_TYPECHECK
#define CURL_DISABLE_DEPRECATION
#include <curl/curl.h>

namespace brigade {

// The functions that the hub calls, named as in curl.h less "curl_".
struct CurlLibrary {
  decltype(&::curl_easy_cleanup) easy_cleanup;
  decltype(&::curl_easy_getinfo) easy_getinfo;
  decltype(&::curl_easy_init) easy_init;
  decltype(&::curl_easy_perform) easy_perform;
  decltype(&::curl_easy_reset) easy_reset;
  decltype(&::curl_easy_setopt) easy_setopt;
  decltype(&::curl_easy_strerror) easy_strerror;
  decltype(&::curl_free) free;
  decltype(&::curl_url) url;
  decltype(&::curl_url_cleanup) url_cleanup;
  decltype(&::curl_url_get) url_get;
  decltype(&::curl_url_set) url_set;
};

// Loaded and initialised by the first call; any thread. Throws an Error that
// names the package where there is none.
const CurlLibrary& curl_library();

}  // namespace brigade
