#include "brigade/hub/download.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <thread>

#include "brigade/base/error.h"
#include "brigade/base/parse_number.h"
#include "brigade/base/units.h"
#include "brigade/files/descriptor.h"
#include "brigade/files/digest.h"
#include "brigade/files/file.h"
#include "brigade/files/lock.h"
#include "brigade/json/node.h"
#include "brigade/safetensors/folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxRevisionBytes = 4 * MiB;

bool is_success(const HttpResponse& response) {
  return response.transport_error.empty() &&
         (response.status == 200 || response.status == 206);
}

// Worth another attempt: the connection broke, or the server is overloaded.
bool is_passing(const HttpResponse& response) {
  return !response.transport_error.empty() || response.status == 429 ||
         response.status >= 500;
}

std::string describe(const HttpResponse& response) {
  return response.transport_error.empty()
             ? fmt::format("status {}", response.status)
             : response.transport_error;
}

// "bytes 5-9/10" -> 5.
std::optional<uint64_t> first_byte_of(const std::string& content_range) {
  constexpr std::string_view kUnit = "bytes ";
  const auto dash = content_range.find('-');
  if (!content_range.starts_with(kUnit) || dash == std::string::npos)
    return std::nullopt;
  return parse_number<uint64_t>(std::string_view(content_range)
                                    .substr(kUnit.size(), dash - kUnit.size()));
}

// W/"abc" -> abc.
std::string bare_etag(std::string etag) {
  if (etag.starts_with("W/"))
    etag.erase(0, 2);
  std::erase(etag, '"');
  return etag;
}

// The part of a blob that has come so far; what it holds survives us.
class PartialFile {
 public:
  explicit PartialFile(const fs::path& path)
      : path_(path),
        descriptor_(::open(
            path.c_str(),
            O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
            0644)) {
    struct stat status {};
    if (!descriptor_.is_open() || ::fstat(descriptor_.get(), &status) != 0)
      fail("open");
    size_bytes_ = static_cast<uint64_t>(status.st_size);
  }

  uint64_t size_bytes() const { return size_bytes_; }

  void append(std::string_view bytes) {
    if (!descriptor_.write(std::as_bytes(std::span(bytes))))
      fail("write");
    size_bytes_ += bytes.size();
  }

  void clear() {
    if (::ftruncate(descriptor_.get(), 0) != 0)
      fail("truncate");
    size_bytes_ = 0;
  }

  void sync() {
    if (::fsync(descriptor_.get()) != 0)
      fail("sync");
  }

 private:
  fs::path path_;
  Descriptor descriptor_;
  uint64_t size_bytes_ = 0;

  [[noreturn]] void fail(const char* what) {
    const int error = errno;
    throw StorageError(fmt::format(
        "[hub] cannot {} '{}': {}{}",
        what,
        path_.string(),
        std::strerror(error),
        error == ENOSPC ? "; free some space and run again" : ""));
  }
};

}  // namespace

HubDownload::HubDownload(
    const std::string& id,
    const HubOptions& options,
    const HubCache& cache)
    : id_(id), options_(options), cache_(cache) {}

void HubDownload::refuse(const HttpResponse& response, const std::string& what)
    const {
  if (is_passing(response)) {
    throw DataError(fmt::format(
        "[hub] cannot download {} from {}: {}; what came so far is kept, run "
        "again to continue",
        what,
        options_.endpoint,
        describe(response)));
  }
  if (response.status == 401 || response.status == 403) {
    throw ConfigError(fmt::format(
        "[hub] {} refuses {} (status {}): {}",
        options_.endpoint,
        what,
        response.status,
        options_.token.empty()
            ? "it does not exist, or needs a token: set HF_TOKEN"
            : "the token given has no access; for a gated model, accept its "
              "conditions on its page first"));
  }
  if (response.status == 404) {
    throw ConfigError(fmt::format(
        "[hub] {} knows no {} at revision '{}'; check model.name (status 404)",
        options_.endpoint,
        what,
        options_.revision));
  }
  throw DataError(fmt::format(
      "[hub] {} answers the request for {} with status {}: {}",
      options_.endpoint,
      what,
      response.status,
      response.error_body));
}

HttpResponse HubDownload::request(
    const HttpRequest& request,
    const HttpBody& body,
    const std::string& what) {
  HttpResponse response;
  for (int attempt = 0; attempt < options_.attempts; ++attempt) {
    if (attempt > 0)
      std::this_thread::sleep_for(options_.retry_delay);
    response = client_.send(request, body);
    if (!is_passing(response))
      return response;
  }
  refuse(response, what);
}

HubDownload::Revision HubDownload::revision() {
  const std::string what = fmt::format("model '{}'", id_);
  std::string text;
  const HttpResponse response = request(
      {.url = fmt::format(
           "{}/api/models/{}/revision/{}",
           options_.endpoint,
           id_,
           options_.revision),
       .token = options_.token},
      {.begin = [&](const HttpResponse&) { text.clear(); },
       .write =
           [&](std::string_view bytes) {
             if (text.size() + bytes.size() > kMaxRevisionBytes) {
               throw DataError(fmt::format(
                   "[hub] the description of {} is above {} bytes",
                   what,
                   kMaxRevisionBytes));
             }
             text += bytes;
           }},
      what);
  if (!is_success(response))
    refuse(response, what);
  const JsonDocument document(
      text,
      {"hub", fmt::format("{}'s description of {}", options_.endpoint, what)});
  const JsonNode root = document.root();
  Revision revision;
  revision.commit = root.at("sha").string();
  for (const JsonNode& sibling : root.at("siblings").elements())
    revision.files.push_back(sibling.at("rfilename").string());
  if (!is_bare_file_name(revision.commit)) {
    throw DataError(fmt::format(
        "[hub] {} names '{}' as the commit of {}",
        options_.endpoint,
        revision.commit,
        what));
  }
  return revision;
}

HubDownload::Remote HubDownload::remote_file(
    const std::string& commit,
    const std::string& file) {
  Remote remote;
  remote.file = file;
  remote.url =
      fmt::format("{}/{}/resolve/{}/{}", options_.endpoint, id_, commit, file);
  // What describes the file is in the hub's own answer, before it redirects to
  // a content store.
  const HttpResponse response = request(
      {.method = HttpMethod::kHead,
       .url = remote.url,
       .token = options_.token,
       .redirects = HttpRedirects::kFollowSameHost},
      {},
      fmt::format("'{}' of '{}'", file, id_));
  const bool redirected = response.status >= 300 && response.status < 400;
  if (!is_success(response) && !redirected)
    refuse(response, fmt::format("file '{}' of '{}'", file, id_));
  const std::string& linked_etag = response.header("x-linked-etag");
  remote.etag =
      bare_etag(linked_etag.empty() ? response.header("etag") : linked_etag);
  if (!is_bare_file_name(remote.etag)) {
    throw DataError(fmt::format(
        "[hub] '{}' comes with the ETag '{}', which cannot name a file",
        remote.url,
        remote.etag));
  }
  remote.size_bytes = parse_number<uint64_t>(response.header("x-linked-size"));
  if (!remote.size_bytes && !redirected)
    remote.size_bytes =
        parse_number<uint64_t>(response.header("content-length"));
  return remote;
}

void HubDownload::file(const std::string& commit, const std::string& file) {
  const Remote remote = remote_file(commit, file);
  {
    const FileLock lock =
        FileLock::wait(cache_.lock(remote.etag), FileLock::File::kKeep);
    if (!fs::exists(cache_.blob(remote.etag)))
      download(remote);
  }
  cache_.link(commit, file, remote.etag);
}

void HubDownload::download(const Remote& remote) {
  const fs::path blob = cache_.blob(remote.etag);
  const fs::path partial = blob.string() + ".incomplete";
  transfer(remote, partial);
  verify(remote, partial);
  fs::rename(partial, blob);
  sync_directory(blob.parent_path());
}

void HubDownload::transfer(const Remote& remote, const fs::path& partial) {
  PartialFile file(partial);
  const uint64_t most = remote.size_bytes.value_or(UINT64_MAX);
  if (file.size_bytes() > most)
    file.clear();
  const std::string what = fmt::format("file '{}' of '{}'", remote.file, id_);
  int attempts_left = options_.attempts;
  while (file.size_bytes() < most) {
    const uint64_t first_byte = file.size_bytes();
    const auto begin = [&](const HttpResponse& response) {
      // Anything but the rest that was asked for is the file from its start.
      const bool is_rest =
          response.status == 206 &&
          first_byte_of(response.header("content-range")) == first_byte;
      if (!is_rest)
        file.clear();
    };
    const auto write = [&](std::string_view bytes) {
      if (file.size_bytes() + bytes.size() > most) {
        file.clear();
        throw DataError(fmt::format(
            "[hub] '{}' is longer than the {} bytes announced",
            remote.url,
            most));
      }
      file.append(bytes);
      if (options_.on_progress) {
        options_.on_progress(
            {.file = remote.file,
             .done_bytes = file.size_bytes(),
             .total_bytes = remote.size_bytes.value_or(0)});
      }
    };
    const HttpResponse response = client_.send(
        {.url = remote.url, .token = options_.token, .first_byte = first_byte},
        {.begin = begin, .write = write});
    if (is_success(response) &&
        (!remote.size_bytes || file.size_bytes() == most))
      break;
    constexpr int kRangeNotSatisfiable = 416;
    if (response.status == kRangeNotSatisfiable) {
      file.clear();
    } else if (!is_passing(response) && !is_success(response)) {
      refuse(response, what);
    }
    // An attempt that brought something new does not count: the next one is
    // nearer to the end.
    if (file.size_bytes() > first_byte) {
      attempts_left = options_.attempts;
    } else if (--attempts_left == 0) {
      HttpResponse broken = response;
      if (is_success(response))
        broken.transport_error = "the answer ends early";
      refuse(broken, what);
    }
    std::this_thread::sleep_for(options_.retry_delay);
  }
  file.sync();
}

void HubDownload::verify(const Remote& remote, const fs::path& partial) {
  constexpr size_t kSha256Digits = 64;  // of large files
  constexpr size_t kSha1Digits = 40;    // of files that git itself holds
  const bool is_hexadecimal =
      remote.etag.find_first_not_of("0123456789abcdef") == std::string::npos;
  std::string actual = remote.etag;  // other ETags say nothing of the content
  if (is_hexadecimal && remote.etag.size() == kSha256Digits)
    actual = sha256_of_file(partial);
  if (is_hexadecimal && remote.etag.size() == kSha1Digits)
    actual = git_blob_sha1_of_file(partial);
  if (actual == remote.etag)
    return;
  fs::remove(partial);
  throw DataError(fmt::format(
      "[hub] '{}' has the hash {}, but {} was announced; it was thrown away, "
      "run again to download it again",
      remote.url,
      actual,
      remote.etag));
}

}  // namespace brigade
