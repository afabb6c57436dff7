package tmpdeps
import (
 _ "github.com/prometheus/client_golang/prometheus"
 _ "github.com/prometheus/client_golang/prometheus/promhttp"
 _ "github.com/prometheus/client_golang/prometheus/testutil"
 _ "golang.org/x/time/rate"
)
