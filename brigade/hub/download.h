// One file from a hub into the cache's blobs. Private to brigade/hub.
#pragma once

#include <optional>
#include <string>

#include "brigade/hub/cache.h"
#include "brigade/hub/http.h"
#include "brigade/hub/hub.h"

namespace brigade {

// Talks to one model's files at one commit.
class HubDownload {
 public:
  HubDownload(
      const std::string& id,
      const HubOptions& options,
      const HubCache& cache);

  // The commit that the revision stands at, and the names of its files.
  struct Revision {
    std::string commit;
    std::vector<std::string> files;
  };
  Revision revision();

  // Makes snapshots/COMMIT/file, downloading unless its blob is there.
  // Precondition: is_bare_file_name(file).
  void file(const std::string& commit, const std::string& file);

 private:
  const std::string& id_;
  const HubOptions& options_;
  const HubCache& cache_;
  HttpClient client_;

  struct Remote {
    std::string url;
    std::string file;
    std::string etag;
    std::optional<uint64_t> size_bytes;  // absent: not known
  };
  HttpResponse request(
      const HttpRequest& request,
      const HttpBody& body,
      const std::string& what);
  Remote remote_file(const std::string& commit, const std::string& file);
  void download(const Remote& remote);
  void transfer(const Remote& remote, const std::filesystem::path& partial);
  void verify(const Remote& remote, const std::filesystem::path& partial);
  [[noreturn]] void refuse(
      const HttpResponse& response,
      const std::string& what) const;
};

}  // namespace brigade
