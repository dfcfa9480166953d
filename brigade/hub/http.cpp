#include "brigade/hub/http.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "brigade/base/check.h"
#include "brigade/hub/curl_library.h"

namespace brigade {
namespace {

constexpr int kMaxRedirects = 10;
constexpr long kConnectTimeoutSeconds = 15;
constexpr long kStallTimeoutSeconds = 30;  // without a byte
constexpr size_t kMaxErrorBodyBytes = 2000;
constexpr size_t kMaxHeaders = 200;

// What the callbacks of one transfer share. libcurl is C: no exception may
// pass through it, so the first one waits here.
struct Transfer {
  CURL* curl;
  const HttpBody& body;
  HttpResponse response;
  bool begun = false;
  std::exception_ptr thrown;

  bool has_content() {
    long status = 0;
    curl_library().easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    response.status = static_cast<int>(status);
    return status == 200 || status == 206;
  }

  void begin() {
    if (!begun && body.begin)
      body.begin(response);
    begun = true;
  }
};

size_t receive(char* data, size_t, size_t size, void* context) {
  auto& transfer = *static_cast<Transfer*>(context);
  try {
    if (transfer.has_content()) {
      transfer.begin();
      transfer.body.write({data, size});
    } else {
      std::string& text = transfer.response.error_body;
      text.append(data, std::min(size, kMaxErrorBodyBytes - text.size()));
    }
  } catch (...) {
    transfer.thrown = std::current_exception();
    return 0;
  }
  return size;
}

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos)
    return {};
  const auto last = text.find_last_not_of(" \t\r\n");
  return std::string(text.substr(first, last - first + 1));
}

size_t receive_header(char* data, size_t, size_t size, void* context) {
  auto& headers = static_cast<Transfer*>(context)->response.headers;
  const std::string_view line(data, size);
  const auto colon = line.find(':');
  // A status line begins a new response: 100 Continue may go before it.
  if (line.starts_with("HTTP/"))
    headers.clear();
  if (colon == std::string_view::npos || headers.size() == kMaxHeaders)
    return size;
  std::string name = trimmed(line.substr(0, colon));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  headers[name] = trimmed(line.substr(colon + 1));
  return size;
}

bool is_redirect(const HttpResponse& response) {
  switch (response.status) {
    case 301:
    case 302:
    case 303:
    case 307:
    case 308:
      return true;
    default:
      return false;
  }
}

}  // namespace

HttpClient::HttpClient()
    : handle_(curl_library().easy_init(), curl_library().easy_cleanup) {
  BRIGADE_ASSERT(handle_ != nullptr, "libcurl gives no handle");
}

const std::string& HttpResponse::header(const std::string& name) const {
  static const std::string kAbsent;
  const auto found = headers.find(name);
  return found == headers.end() ? kAbsent : found->second;
}

std::string origin_of(const std::string& url) {
  const CurlLibrary& library = curl_library();
  CURLU* parsed = library.url();
  std::string origin;
  if (library.url_set(parsed, CURLUPART_URL, url.c_str(), 0) == CURLUE_OK) {
    for (const CURLUPart part :
         {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT}) {
      char* text = nullptr;
      library.url_get(parsed, part, &text, CURLU_DEFAULT_PORT);
      origin += text == nullptr ? "" : text;
      origin += part == CURLUPART_SCHEME ? "://"
                : part == CURLUPART_HOST ? ":"
                                         : "";
      library.free(text);
    }
  }
  library.url_cleanup(parsed);
  return origin;
}

HttpResponse HttpClient::send(
    const HttpRequest& request,
    const HttpBody& body) {
  std::string url = request.url;
  for (int redirects = 0; redirects <= kMaxRedirects; ++redirects) {
    const bool same_host = origin_of(url) == origin_of(request.url);
    // The token is a secret between the user and the hub: content stores to
    // which the hub redirects must not see it.
    HttpResponse response =
        send_once(request, url, same_host ? request.token : "", body);
    if (!response.transport_error.empty() || !is_redirect(response))
      return response;
    char* next = nullptr;
    curl_library().easy_getinfo(handle_.get(), CURLINFO_REDIRECT_URL, &next);
    if (next == nullptr)
      return response;
    const bool stays = origin_of(next) == origin_of(request.url);
    if (!stays && request.redirects == HttpRedirects::kFollowSameHost)
      return response;
    const bool downgrade = url.starts_with("https:") &&
                           !std::string_view(next).starts_with("https:");
    if (downgrade) {
      response.transport_error =
          fmt::format("refused a redirect from https to '{}'", next);
      return response;
    }
    url = next;
  }
  HttpResponse response;
  response.transport_error =
      fmt::format("more than {} redirects", kMaxRedirects);
  return response;
}

HttpResponse HttpClient::send_once(
    const HttpRequest& request,
    const std::string& url,
    const std::string& token,
    const HttpBody& body) {
  const CurlLibrary& library = curl_library();
  CURL* curl = handle_.get();
  library.easy_reset(curl);
  Transfer transfer{.curl = curl, .body = body};
  char message[CURL_ERROR_SIZE] = {};
  library.easy_setopt(curl, CURLOPT_URL, url.c_str());
  library.easy_setopt(
      curl, CURLOPT_PROTOCOLS, long{CURLPROTO_HTTP | CURLPROTO_HTTPS});
  library.easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  library.easy_setopt(curl, CURLOPT_USERAGENT, "brigade");
  library.easy_setopt(curl, CURLOPT_ERRORBUFFER, message);
  library.easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectTimeoutSeconds);
  library.easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  library.easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, kStallTimeoutSeconds);
  library.easy_setopt(curl, CURLOPT_WRITEFUNCTION, receive);
  library.easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  library.easy_setopt(curl, CURLOPT_HEADERFUNCTION, receive_header);
  library.easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  if (request.method == HttpMethod::kHead)
    library.easy_setopt(curl, CURLOPT_NOBODY, 1L);
  if (request.first_byte > 0) {
    const std::string range = fmt::format("{}-", request.first_byte);
    library.easy_setopt(curl, CURLOPT_RANGE, range.c_str());
  }
  if (!token.empty()) {
    library.easy_setopt(curl, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    library.easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, token.c_str());
  }
  const CURLcode code = library.easy_perform(curl);
  library.easy_setopt(curl, CURLOPT_ERRORBUFFER, nullptr);  // it ends with us
  if (transfer.thrown)
    std::rethrow_exception(transfer.thrown);
  const bool has_content = transfer.has_content();
  if (code != CURLE_OK) {
    transfer.response.transport_error =
        message[0] != '\0' ? message : library.easy_strerror(code);
  } else if (has_content && request.method == HttpMethod::kGet) {
    transfer.begin();  // an empty body is one, too
  }
  return std::move(transfer.response);
}

}  // namespace brigade
