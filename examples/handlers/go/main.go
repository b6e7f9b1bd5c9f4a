// A handler of Tidewater: the server asks it about uploads, conflicts, downloads and sign-ins.
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const clocksDiffer = 5 * time.Minute

type object = map[string]any

// A change of a note; the note is nil if it was deleted.
type change struct {
	key  object
	note object
}

var (
	// The current secret and, while it is replaced, the one before: separated by a comma.
	secrets = strings.FieldsFunc(os.Getenv("HANDLER_SECRETS"), func(r rune) bool { return r == ',' })

	lock sync.Mutex
	// What was said of rows, by their idempotency key.
	answered = map[string]object{}
	// Every change of a note, in order: the cursor is how many a device has seen.
	notes []change
)

// Whether the server has sent this, within the last five minutes.
func isSigned(header http.Header, body []byte) bool {
	if len(secrets) == 0 {
		return true // On this machine only.
	}
	timestamp := header.Get("Tidewater-Timestamp")
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || time.Since(time.Unix(seconds, 0)).Abs() > clocksDiffer {
		return false
	}
	matches := false
	for _, secret := range secrets {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(timestamp + "."))
		mac.Write(body)
		expected := "v1=" + hex.EncodeToString(mac.Sum(nil))
		for _, given := range strings.Split(header.Get("Tidewater-Signature"), ",") {
			// hmac.Equal takes the same time whatever differs.
			matches = hmac.Equal([]byte(given), []byte(expected)) || matches
		}
	}
	return matches
}

// What was said of a row before, or what is decided now: a request may come twice.
func each(request object, decide func(row object) object) object {
	said := []object{}
	for _, it := range request["rows"].([]any) {
		row := it.(object)
		key := row["idempotency_key"].(string)
		if _, known := answered[key]; !known {
			answered[key] = decide(row)
		}
		verdict := object{"idempotency_key": key}
		for name, value := range answered[key] {
			verdict[name] = value
		}
		said = append(said, verdict)
	}
	return object{"rows": said}
}

func quantity(row any) float64 {
	image, _ := row.(object)
	quantity, _ := image["quantity"].(float64)
	return quantity
}

func judgeOrder(row object) object {
	switch quantity := quantity(row["new"]); {
	case row["operation"] == "delete":
		return object{"verdict": "apply"}
	case quantity <= 0:
		return object{"verdict": "refuse", "reason": "an order has a quantity of at least 1"}
	case quantity > 100:
		return object{"verdict": "change", "new": object{"quantity": 100}}
	default:
		return object{"verdict": "apply"}
	}
}

func keepNote(row object) object {
	note, _ := row["new"].(object)
	notes = append(notes, change{row["key"].(object), note})
	return object{"verdict": "handled"}
}

func greaterQuantity(row object) object {
	if row["new"] == nil || row["theirs"] == nil {
		return object{"verdict": "centre"}
	}
	greater := max(quantity(row["new"]), quantity(row["theirs"]))
	return object{"verdict": "merge", "new": object{"quantity": greater}}
}

func download(request object) object {
	begin := 0
	if cursor, ok := request["cursor"].(object); ok {
		begin = int(cursor["seen"].(float64))
	}
	if begin > len(notes) {
		return object{"reset": true} // It was started anew: all devices begin anew as well.
	}
	end := min(begin+100, len(notes))
	latest := map[string]change{}
	note := func(it change) { latest[fmt.Sprint(it.key)] = it }
	for _, it := range notes[begin:end] {
		note(it)
	}
	again, _ := request["again"].([]any) // The device could not use what it got before.
	for _, it := range again {
		key := it.(object)
		note(change{key: key})
		for _, known := range notes {
			if fmt.Sprint(known.key) == fmt.Sprint(key) {
				note(known)
			}
		}
	}
	rows, removed := []object{}, []object{}
	for _, it := range latest {
		if it.note != nil {
			rows = append(rows, it.note)
		} else {
			removed = append(removed, it.key)
		}
	}
	return object{
		"rows": rows, "removed": removed,
		"cursor": object{"seen": end}, "more": end < len(notes),
	}
}

func answer(request object) object {
	switch request["event"] {
	case "upload":
		if request["table"] == "note" {
			return each(request, keepNote)
		}
		return each(request, judgeOrder)
	case "resolve_conflict":
		return each(request, greaterQuantity)
	case "download":
		return download(request)
	case "authenticate_user":
		if request["user"] == "anna" && request["password"] == "annas password" {
			return object{"verdict": "accept", "claims": object{"region": "north"}}
		}
		return object{"verdict": "refuse"}
	default: // begin_synchronization, end_synchronization
		return object{"verdict": "accept"}
	}
}

func handle(response http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return
	}
	var asked object
	response.Header().Set("Content-Type", "application/json")
	switch {
	case !isSigned(request.Header, body):
		response.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(response, `{"error": "the signature does not fit"}`)
	case json.Unmarshal(body, &asked) != nil:
		response.WriteHeader(http.StatusBadRequest)
	default:
		lock.Lock()
		defer lock.Unlock()
		json.NewEncoder(response).Encode(answer(asked))
	}
}

func main() {
	port := os.Getenv("PORT")
	if port == "" {
		port = "8080"
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("listening on http://%s/\n", listener.Addr())
	log.Fatal(http.Serve(listener, http.HandlerFunc(handle)))
}
