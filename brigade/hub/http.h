// HTTP through libcurl, as far as downloading from a Hugging Face hub needs
// it. Private to brigade/hub.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace brigade {

enum class HttpMethod { kGet, kHead };
enum class HttpRedirects {
  kFollow,
  kFollowSameHost,  // a redirect elsewhere is returned as the response
};

struct HttpRequest {
  HttpMethod method = HttpMethod::kGet;
  std::string url;
  // Sent to the host of `url` only, never to where a redirect leads.
  std::string token;
  HttpRedirects redirects = HttpRedirects::kFollow;
  uint64_t first_byte = 0;  // above 0: asks for the rest of the file
};

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  // The start of the body, where the status is another than 200 and 206.
  std::string error_body;
  // Empty unless the transfer broke: what libcurl says. `status` is then what
  // had come by then, or 0.
  std::string transport_error;

  const std::string& header(const std::string& name) const;  // "": absent
};

// Receives the body of a 200 or 206, whose size it gets once, before the first
// byte. May throw: the transfer ends and the exception comes out of send().
struct HttpBody {
  std::function<void(const HttpResponse& response)> begin;
  std::function<void(std::string_view bytes)> write;
};

// One connection, reused. Not thread-safe.
class HttpClient {
 public:
  HttpClient();

  // Broken transfers do not throw: see HttpResponse::transport_error.
  HttpResponse send(const HttpRequest& request, const HttpBody& body);

 private:
  std::unique_ptr<void, void (*)(void*)> handle_;  // libcurl's

  HttpResponse send_once(
      const HttpRequest& request,
      const std::string& url,
      const std::string& token,
      const HttpBody& body);
};

// "http://host:port", what decides whether two addresses may share a token.
std::string origin_of(const std::string& url);

}  // namespace brigade
